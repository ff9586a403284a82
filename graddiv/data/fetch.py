"""Download the official files: downloads that were cut are resumed, and archives are unpacked without trusting them."""

import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from graddiv.data.dataset import Source
from graddiv.data.files import md5_of
from graddiv.errors import GradDivError
from graddiv.progress import Progress

ATTEMPTS = 5  #: Failed attempts in a row after which a download is given up.
PAUSE = 1.0  #: Seconds before the second attempt; the pause doubles with each failure.
TIMEOUT = 30.0  #: Seconds without a byte after which an attempt has failed.
CHUNK = 1 << 18  #: Bytes read at a time.


def fetch(source: Source, root: Path, progress: Progress) -> None:
    """Download the files of the data set that are missing or damaged in `root`."""
    for download in source.downloads:
        if all(_is_intact(root / path, source.md5s[path]) for path in download.members or [download.path]):
            continue
        kept = root / download.path
        already_there = _is_intact(kept, download.md5)  # torchvision leaves its archive next to the unpacked files
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            if not already_there:
                retrieve(download.url, kept, download.md5, download.size, progress)
            if download.members:
                unpack(kept, download.members, root)
                if not already_there:
                    kept.unlink()
        except OSError as error:
            raise GradDivError(f"data root {root} cannot be written ({error}), expected a folder with room") from error


def retrieve(url: str, destination: Path, md5: str, size: int, progress: Progress) -> None:
    """Download a file of `size` bytes; `destination` exists only once its md5 is right, until then a .part file."""
    part = destination.with_name(destination.name + ".part")
    failures, longest = 0, _size(part)
    while True:  # until the file is complete, or several attempts in a row bring nothing new
        try:
            _append(url, part, size, progress)
            break
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            error.close()
            failures = ATTEMPTS if 400 <= error.code < 500 else failures + 1  # 4xx: asking again would not help
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = str(error)
            failures = 1 if _size(part) > longest else failures + 1
        longest = max(longest, _size(part))
        if failures >= ATTEMPTS:
            kept = f"{_size(part)} bytes are kept in {part}, and the same command resumes there"
            raise GradDivError(f"{url} could not be downloaded ({reason}); {kept}")
        time.sleep(PAUSE * 2 ** (failures - 1))
    found, here = md5_of(part), _size(part)
    if found != md5:
        part.unlink()
        gave = f"gave {here} bytes{' or more' if here > size else ''} with md5 {found}"
        raise GradDivError(f"{url} {gave}, expected {size} bytes with md5 {md5}; the bad file was deleted")
    part.replace(destination)


def unpack(archive: Path, members: Sequence[str], root: Path) -> None:
    """Copy exactly these members of an archive, which must be plain files, to their own names below `root`."""
    wanted = set(members)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.name in wanted and (content := tar.extractfile(member) if member.isfile() else None):
                    target = root / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part = target.with_name(target.name + ".part")
                    with part.open("wb") as out:
                        shutil.copyfileobj(content, out)
                    part.replace(target)
                    wanted.remove(member.name)
                if not wanted:
                    return
    except (tarfile.TarError, EOFError) as error:
        raise GradDivError(f"{archive} cannot be unpacked ({error}), expected a tar.gz archive") from error
    raise GradDivError(f"{archive} lacks {', '.join(sorted(wanted))}, expected {len(members)} files of the data set")


def _is_intact(path: Path, md5: str) -> bool:
    return path.is_file() and md5_of(path) == md5


def _append(url: str, part: Path, size: int, progress: Progress) -> None:
    """Download the rest of the file; a connection that ends too soon is an error, surplus bytes are cut off."""
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return error.close()  # nothing is lacking; the checksum judges what is here
    with response:
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        start = start if response.status == http.HTTPStatus.PARTIAL_CONTENT and resumed else 0
        with part.open("r+b" if start else "wb") as out:
            here = out.seek(start)
            while here <= size and (chunk := _read(response)):
                here += out.write(chunk)
                progress(float(here), float(size), part.stem)
            out.truncate()
    if here < size:
        raise ConnectionError(f"the connection was cut after {here} of {size} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes; an OSError here is one of the connection, and must not be taken for one of the disk."""
    try:
        return response.read(CHUNK)
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
