"""Where the official files are, and whether they are the official ones."""

import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from graddiv.data.source import File, Source
from graddiv.errors import GradDivError

Root = str | Path | None


class Copy(NamedTuple):
    """A copy of an official file on this machine: its data root, its path below it and the md5 it should have."""

    root: Path
    name: str
    md5: str

    @property
    def path(self) -> Path:
        return self.root / self.name


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/graddiv, by default ~/.cache/graddiv."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graddiv"


def search_path(root: Root = None) -> list[Path]:
    """Folders to look in: `root` alone when it is given, else $GRADDIV_DATA and then the usual places.

    $GRADDIV_DATA may list several folders as $PATH does.  The usual places are ./data, ~/data and ~/datasets,
    where torchvision's users keep theirs, and the folder that `graddiv data fetch` writes to by default.
    """
    if root is not None:
        return [_expanded(root)]
    listed = [_expanded(entry) for entry in os.environ.get("GRADDIV_DATA", "").split(os.pathsep) if entry]
    return [*listed, Path.cwd() / "data", Path.home() / "data", Path.home() / "datasets", cache_folder() / "data"]


def _expanded(folder: str | Path) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # ~name of nobody
        raise GradDivError(f"data root {folder} names the home of an unknown user, expected a folder") from error


def fetch_root(source: Source, root: Root = None) -> Path:
    """Folder to download to: where part of the data set is already, else the first of $GRADDIV_DATA, else the cache."""
    copies = [copy for copy in (locate(source, file, root) for file in source.all_files) if copy is not None]
    wrong = [copy for copy in copies if md5_of(copy.path) != copy.md5]  # a wrong copy hides what is fetched elsewhere
    if copies:
        return (wrong or copies)[0].root
    chosen = root is not None or os.environ.get("GRADDIV_DATA")
    return search_path(root)[0 if chosen else -1]


def fetch_command(source: Source, root: Root = None) -> str:
    """The command that gets the data set."""
    if source.embedded_in is not None:
        return "pip install --force-reinstall graddiv"
    option = [] if root is None else ["--data-root", str(root)]
    return shlex.join(["graddiv", "data", "fetch", source.name, *option])


def locate(source: Source, file: File, root: Root = None) -> Copy | None:
    """The first readable copy of the file on the search path."""
    for folder in _folders(source, root):
        for name, md5 in file.forms.items():
            if os.access(folder / name, os.R_OK):
                return Copy(folder, name, md5)
    return None


def verified(source: Source, file: File, root: Root = None) -> Path:
    """Path of the file, found and checked to be the official one."""
    copy = locate(source, file, root)
    if copy is None:
        raise GradDivError(
            f"data set '{source.name}' is missing: no {next(iter(file.forms))} in "
            f"{', '.join(map(str, _folders(source, root)))}; get it with '{fetch_command(source, root)}'"
        )
    md5 = md5_of(copy.path)
    if md5 != copy.md5:
        twins = [f" (the official {Path(name).name})" for name, other in source.md5s.items() if other == md5]
        raise GradDivError(
            f"{copy.path} has md5 {md5}{''.join(twins)}, expected {copy.md5}; "
            f"get it again with '{fetch_command(source, root)}'"
        )
    return copy.path


def inspect(source: Source, root: Root = None) -> Iterator[tuple[Copy, str | None]]:
    """Each file of the data set with the md5 it has now; None where it is missing."""
    for file in source.all_files:
        copy = locate(source, file, root)
        if copy is None:
            yield Copy(fetch_root(source, root), *next(iter(file.forms.items()))), None
        else:
            yield copy, md5_of(copy.path, remembered=False)


def status(source: Source, root: Root = None) -> str:
    """Where the data set is, or the command that gets it, in a few words."""
    if not source.files:
        return "generated"
    if source.embedded_in is not None:
        return "embedded in the package"
    copies = [locate(source, file, root) for file in source.all_files]
    folders = dict.fromkeys(str(copy.root) for copy in copies if copy is not None)
    if None not in copies:
        return f"found in {', '.join(folders)}"
    missing = f"{copies.count(None)} of {len(copies)} files missing" if folders else "missing"
    return f"{missing}; get it with '{fetch_command(source, root)}'"


def md5_of(path: Path, remembered: bool = True) -> str:
    """The file's md5, by default as remembered from its first use while its size and time of change stay the same."""
    try:
        stat = path.stat()
        stamp, memory = [stat.st_size, stat.st_mtime_ns], _memory()
        known = memory.get(str(path.absolute()))
        if remembered and isinstance(known, list) and len(known) == 3 and known[:2] == stamp:
            return str(known[2])
        digest = digest_of(path)
    except OSError as error:
        raise GradDivError(f"{path} cannot be read ({error.strerror}), expected a readable file") from error
    _remember({**memory, str(path.absolute()): [*stamp, digest]})
    return digest


def digest_of(path: Path) -> str:
    """The file's md5, computed."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _folders(source: Source, root: Root) -> list[Path]:
    return search_path(root) if source.embedded_in is None else [source.embedded_in]


def _memory() -> dict[str, Any]:
    try:
        memory = json.loads((cache_folder() / "md5.json").read_text())
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(memory: dict[str, Any]) -> None:
    """Best effort: where the cache cannot be written, the next use computes the md5 again."""
    path = cache_folder() / f"md5.json.{os.getpid()}"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(memory, indent=1))
        path.replace(path.with_name("md5.json"))
