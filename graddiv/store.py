"""Files that survive a crash and reveal damage: everything that graddiv reads or writes goes through here.

Writes are atomic.  Readers take regular files only, of a reasonable size, in UTF-8 whatever the locale, and turn every
failure into a `GradDivError`.  Checkpoints, records and lines of logs carry a checksum, which is verified.
"""

import fcntl
import hashlib
import io
import json
import os
import socket
import stat
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from graddiv.errors import GradDivError

LARGEST = 1 << 34  #: Bytes of the largest file that is read.
LARGEST_DOCUMENT = 1 << 26  #: Bytes of the largest JSON or TOML file.
DEEPEST = 40  #: Nesting of the deepest document: code that follows deeper ones would exhaust the stack.
WHAT_TO_DO = "; restore it from a copy, or delete it and run the command that made it again"

# ---- whole files


class MissingFileError(GradDivError):
    """There is no file of this name."""


def read(path: Path, limit: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    try:
        about = path.stat()
        regular = stat.S_ISREG(about.st_mode)
        content = path.read_bytes() if regular and about.st_size <= limit else b""
    except FileNotFoundError:
        raise MissingFileError(f"there is no {path}") from None
    except (OSError, ValueError, MemoryError) as error:
        raise GradDivError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not regular:
        kind = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO"}.get(stat.S_IFMT(about.st_mode), "a device")
        raise GradDivError(f"cannot read {path}: it is {kind}, expected a regular file")
    if about.st_size > limit:
        raise GradDivError(f"cannot read {path}: it has {about.st_size} bytes, expected at most {limit}")
    return content


def _read_document(path: Path) -> str:
    """Return the content of a JSON or TOML file, which is UTF-8 whatever the locale."""
    try:
        return read(path, LARGEST_DOCUMENT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise GradDivError(f"cannot read {path}: it is no UTF-8 text ({error.reason} at byte {error.start})") from None


def write(path: Path, content: bytes) -> None:
    """Write the file completely or not at all: a temporary file beside it is written, flushed to disk, and renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    kept = "; the file from before is untouched" if path.exists() else ""
    try:
        with writes_to(path, kept):
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)  # else a crash could undo the rename
            finally:
                os.close(directory)
    except GradDivError:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def writes_to(path: Path, kept: str = "") -> Iterator[None]:
    """Turn the system's error about a full or read-only disk into one that names the file, and what is `kept`."""
    try:
        yield
    except OSError as error:
        raise GradDivError(f"cannot write {path}: {error.strerror or error}{kept}") from error


def digest(*parts: str | bytes | Tensor) -> str:
    """sha256 of texts, bytes and the values of tensors."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):  # as bytes: NumPy knows no bfloat16
            found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(part.encode() if isinstance(part, str) else part)
    return found.hexdigest()


def is_directory(path: Path) -> bool:
    """Whether this is a directory; False for a name that no file can have."""
    return os.path.isdir(path)  # noqa: PTH112 -- which raises for such a name


def make_directory(path: Path) -> None:
    """Make the directory and the ones above it, where they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GradDivError(f"cannot make the directory {path}: {error.strerror}") from error


# ---- JSON and TOML


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file, which must hold an object."""
    return parse_json(_read_document(path), str(path))


def parse_json(text: str, source: str) -> dict[str, Any]:
    """The object that a JSON text describes; error messages name `source`."""
    return _parse(json.loads, text, source, "JSON")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    return parse_toml(_read_document(path), str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The tables that a TOML text describes; error messages name `source`."""
    return _parse(tomllib.loads, text, source, "TOML")


def _parse(loads: Callable[[str], object], text: str, source: str, language: str) -> dict[str, Any]:
    too_deep = GradDivError(f"cannot read {source}: it is nested deeper than {DEEPEST} levels")
    try:
        value = loads(text)
    except RecursionError:
        raise too_deep from None
    except (ValueError, OverflowError) as error:
        raise GradDivError(f"cannot read {source} as {language}: {str(error).splitlines()[0]}") from None
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        parts = [list(whole.values()) if isinstance(whole, dict) else whole for whole in level]
        level = [part for each in parts if isinstance(each, list) for part in each]
    if level:
        raise too_deep
    if not isinstance(value, dict):
        raise GradDivError(f"cannot read {source}: it holds {type(value).__name__} {value!r:.40}, expected an object")
    return value


def write_once_or_match(
    path: Path, expected: Mapping[str, object], normalize: Callable[[Any], Mapping[str, object]] = dict
) -> None:
    """Write `expected` as JSON if the file is new; otherwise refuse to go on unless it holds the same.

    `normalize` brings what an earlier version wrote into the form of `expected`.
    """
    if not path.exists():
        write_json(path, expected)
    else:
        check_same(path.parent, normalize(read_json(path)), json.loads(json.dumps(expected)))


def check_same(place: Path | None, before: object, now: object) -> None:
    """Refuse settings other than those with which `place` was made."""
    if different := differences(before, now):
        key, found, wanted = different[0]
        more = f" (and {len(different) - 1} more keys)" if len(different) > 1 else ""
        remedy = "choose another directory with --out, or the settings of that one"
        raise GradDivError(f"{place} was made with {key} = {found!r}, now it is {wanted!r}{more}: {remedy}")


def differences(found: object, wanted: object, key: str = "") -> list[tuple[str, object, object]]:
    """Return (key, value found, value wanted) for every place at which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        a, b = cast("dict[str, object]", found), cast("dict[str, object]", wanted)
        return [d for k in {**a, **b} for d in differences(a.get(k), b.get(k), f"{key}.{k}" if key else k)]
    return [] if found == wanted else [(key, found, wanted)]


# ---- locks: the system frees those of dead processes

LOCK = ".lock"  #: The file in a directory whose lock its writer holds.


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only writer of a directory, and delete the temporary files that killed writers left."""
    make_directory(directory)
    with file_lock(directory / LOCK):
        for parent, below, names in os.walk(directory):  # without directories below that have a lock of their own
            below[:] = [name for name in below if not Path(parent, name, LOCK).exists()]
            for left in (Path(parent, name) for name in names if name.startswith(".") and name.endswith(".tmp")):
                with writes_to(left):
                    left.unlink(missing_ok=True)
        yield


@contextmanager
def file_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on this file, which must not be a link; if another process has it, wait or raise an error."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise GradDivError(f"cannot write into {path.parent}: {error.strerror}") from error
    with os.fdopen(handle, "r+b", buffering=0) as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif not _try_lock(file):
            time.sleep(0.05)  # try again, since is_locked of another process holds the lock for a moment
            if not _try_lock(file):
                owner = file.read(200).decode("utf-8", "replace").strip() or "another process"
                remedy = "wait for it to end, or choose another directory with --out"
                raise GradDivError(f"{path.parent} is being written by {owner}: {remedy}")
        with writes_to(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def is_locked(directory: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of the directory, by default that of its writer."""
    try:
        if not (directory / name).is_file():
            return False
        with (directory / name).open("rb", buffering=0) as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except OSError as error:
        raise GradDivError(f"cannot read {directory / name}: {error.strerror}") from error


def _try_lock(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock if nobody has it, and return whether that worked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---- arrays and their description in one file: safetensors, a JSON header and raw bytes, which run no code when read.
# The header also holds a sha256 of the whole file, computed with zeros in its own place: of the values, and of the
# names, types and shapes that say how to read them.

DESCRIPTION, CHECKSUM = "graddiv", "sha256"  #: Keys in the header's metadata.
UNKNOWN = "0" * 64  #: Stands for the checksum while it is computed.


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, object]) -> None:
    """Write torch tensors and their description as one file."""
    # copies, because safetensors stores neither other memory formats nor two names of the same storage
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write(path, _with_description(safetensors.torch.save(plain), description))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; refuse a file that graddiv did not write, or that has changed since."""
    tensors, metadata = _read_safetensors(path)
    if metadata.keys() != {DESCRIPTION, CHECKSUM}:
        raise GradDivError(f"{path} is not a file that graddiv wrote")
    return tensors, parse_json(str(metadata[DESCRIPTION]), str(path))


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file of parameters by name, whoever wrote it."""
    return _read_safetensors(path)[0]


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], description: Mapping[str, object]) -> None:
    """Write NumPy arrays and their description as one file."""
    write_tensors(path, {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, description)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_arrays` wrote."""
    tensors, description = read_tensors(path)
    return {name: t.numpy() for name, t in tensors.items()}, description


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Return these arrays of a user's .npz file, or all if no name is given."""
    content = read(path)
    if not content.startswith(b"PK"):  # else NumPy takes it for a pickle, or for a single array
        raise GradDivError(f"cannot read {path}: it is no .npz file, expected one that numpy.savez wrote")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            found = {name: archive[name] for name in names or archive.files if name in archive.files}
    except Exception as error:  # zip, its compression and the header of an array each have errors of their own
        raise GradDivError(f"cannot read {path} as .npz: {error}") from None
    if missing := [name for name in names if name not in found]:
        raise GradDivError(f"{path} lacks the array {missing[0]!r}")
    return found


def _with_description(content: bytes, description: Mapping[str, object]) -> bytes:
    """Add a description and the checksum to the header of a safetensors file."""
    # by hand, since safetensors would write the two in a random order, and equal files must have equal bytes
    length = int.from_bytes(content[:8], "little")
    metadata = {DESCRIPTION: json.dumps(description), CHECKSUM: UNKNOWN}
    header = json.dumps({"__metadata__": metadata, **json.loads(content[8 : 8 + length])}, separators=(",", ":"))
    padded = header.encode().ljust(-(-len(header.encode()) // 8) * 8)
    whole = b"".join([len(padded).to_bytes(8, "little"), padded, memoryview(content)[8 + length :]])
    return whole.replace(_field(UNKNOWN), _field(hashlib.sha256(whole).hexdigest()), 1)


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the metadata of a file, after its length and, where it has one, its checksum are verified."""
    content = read(path)
    length = 8 + int.from_bytes(content[:8], "little")
    try:
        header = parse_json(content[8:length].decode("utf-8"), str(path))
        metadata = dict(header.pop("__metadata__", {}))
        expected = length + int(max((entry["data_offsets"][1] for entry in header.values()), default=0))
    except (ValueError, LookupError, TypeError, OverflowError):
        raise GradDivError(f"cannot read {path} as safetensors: it is not a file that graddiv wrote") from None
    if len(content) != expected:
        raise GradDivError(f"{path} is damaged: it has {len(content)} bytes where {expected} were expected{WHAT_TO_DO}")
    if metadata.keys() >= {DESCRIPTION, CHECKSUM}:
        wanted = str(metadata[CHECKSUM])
        found = hashlib.sha256(content.replace(_field(wanted), _field(UNKNOWN), 1)).hexdigest()
        if found != wanted:
            said = f"its content has sha256 {found[:10]}, expected {wanted[:10]}"
            raise GradDivError(f"{path} is damaged: {said}{WHAT_TO_DO}")
    try:
        return safetensors.torch.load(content), metadata
    except Exception as error:  # a header that contradicts itself can raise anything
        raise GradDivError(f"cannot read {path} as safetensors: {error}") from None


def _field(checksum: str) -> bytes:
    return f'"{CHECKSUM}":"{checksum}"'.encode()
