"""Finds the official files on this machine, and checks that they are the official ones."""

import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from graddiv.data.dataset import PACKAGE, Source
from graddiv.errors import GradDivError

Root = str | Path | None  #: The folder that holds the official files; None for the usual places.


class Copy(NamedTuple):
    """An official file on this machine."""

    root: Path  #: Its data root.
    name: str  #: Its path below it.
    md5: str  #: The md5 it should have.

    @property
    def path(self) -> Path:
        return self.root / self.name


def search_path(root: Root = None) -> list[Path]:
    """Folders to look in: `root` alone when it is given, else those of $GRADDIV_DATA and then the usual places.

    ./data, ~/data and ~/datasets are where torchvision's users keep theirs; `graddiv data fetch` writes to the last.
    """
    if root is not None:
        return [_expanded(root)]
    listed = [_expanded(entry) for entry in os.environ.get("GRADDIV_DATA", "").split(os.pathsep) if entry]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "graddiv", "data")
    return [*listed, Path.cwd() / "data", Path.home() / "data", Path.home() / "datasets", cache]


def _expanded(folder: str | Path) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # ~name of nobody
        raise GradDivError(f"data root {folder} names the home of an unknown user, expected a folder") from error


def _forms(source: Source, file: str) -> list[str]:
    """Return the paths that the file may have: compressed, and as it is."""
    return [form for form in (f"{file}.gz", file) if form in source.md5s]


def _folders(source: Source, root: Root) -> list[Path]:
    return [PACKAGE] if source.embedded else search_path(root)


def locate(source: Source, file: str, root: Root = None) -> Copy | None:
    """Return the first readable copy of the file on the search path, and None if there is none."""
    for folder in _folders(source, root):
        for name in _forms(source, file):
            if (folder / name).is_file() and os.access(folder / name, os.R_OK):
                return Copy(folder, name, source.md5s[name])
    return None


def located(source: Source, root: Root = None) -> dict[str, Copy | None]:
    """Return the first readable copy of each file of the data set."""
    return {file: locate(source, file, root) for files in source.files.values() for file in files}


def fetch_root(source: Source, root: Root = None) -> Path:
    """The folder to download to: where a part of it is already, else the first of $GRADDIV_DATA, else the cache."""
    copies = [copy for copy in located(source, root).values() if copy]
    # A wrong copy decides: it comes first on the search path and would hide a good one that is fetched elsewhere.
    for copy in [copy for copy in copies if md5_of(copy.path) != copy.md5] or copies:
        return copy.root
    chosen = root is not None or os.environ.get("GRADDIV_DATA")
    return search_path(root)[0 if chosen else -1]


def fetch_command(source: Source, root: Root = None) -> str:
    """Return the command with which the user gets the data set."""
    if source.embedded:
        return "pip install --force-reinstall graddiv"
    option = [] if root is None else ["--data-root", str(root)]
    return shlex.join(["graddiv", "data", "fetch", source.name, *option])


def verified(source: Source, file: str, root: Root = None) -> Path:
    """Return the path of the file, once it is found and its md5 shows that it is the official one."""
    if (copy := locate(source, file, root)) is None:
        raise GradDivError(
            f"data set '{source.name}' is missing: no {_forms(source, file)[0]} in "
            f"{', '.join(map(str, _folders(source, root)))}; get it with '{fetch_command(source, root)}'"
        )
    if (md5 := md5_of(copy.path)) != copy.md5:
        twins = [f" (the official {Path(name).name})" for name, other in source.md5s.items() if other == md5]
        again = f"get it again with '{fetch_command(source, root)}'"
        raise GradDivError(f"{copy.path} has md5 {md5}{''.join(twins)}, expected {copy.md5}; {again}")
    return copy.path


def inspect(source: Source, root: Root = None) -> Iterator[tuple[Copy, str | None]]:
    """Yield each file of the data set with the md5 it has now, and None for it where the file is missing."""
    for file, copy in located(source, root).items():
        if copy is None:
            name = _forms(source, file)[0]
            yield Copy(fetch_root(source, root), name, source.md5s[name]), None
        else:
            yield copy, md5_of(copy.path)


def status(source: Source, root: Root = None) -> str:
    """Say in a few words where the data set is, or with which command it can be fetched."""
    if source.embedded or not source.files:
        return "embedded in the package" if source.embedded else "generated"
    copies = list(located(source, root).values())
    folders = dict.fromkeys(str(copy.root) for copy in copies if copy is not None)
    if None not in copies:
        return f"found in {', '.join(folders)}"
    missing = f"{copies.count(None)} of {len(copies)} files missing" if folders else "missing"
    return f"{missing}; get it with '{fetch_command(source, root)}'"


def md5_of(path: Path) -> str:
    """Return the file's md5."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise GradDivError(f"{path} cannot be read ({error.strerror}), expected a readable file") from error
