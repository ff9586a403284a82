"""Whole files: regular ones are read, and they are written completely or not at all."""

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graddiv.errors import GradDivError, GradDivWarning

LARGEST = 1 << 34
"""Bytes of the largest file that is read."""
WHAT_TO_DO = "; restore it from a copy, or delete it and run the command that made it again"
"""How an error of a damaged file ends."""
PACKAGE = Path(__file__).resolve().parent.parent
"""What lies below it came with the package."""


class MissingFileError(GradDivError):
    """There is no file of this name."""


def read(path: Path, limit: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    try:
        # without O_NONBLOCK, opening a FIFO waits until somebody writes into it
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            fits = stat.S_ISREG(about.st_mode) and about.st_size <= limit
            content = b""
            if fits:
                with open(handle, "rb", closefd=False) as file:
                    content = file.read()
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise MissingFileError(f"there is no {path}") from None
    except (OSError, ValueError, MemoryError) as error:
        raise GradDivError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(about.st_mode):
        raise GradDivError(f"cannot read {path}: it is {_kind(about.st_mode)}, expected a regular file")
    if not fits:
        raise GradDivError(f"cannot read {path}: it has {about.st_size} bytes, expected at most {limit}")
    return content


def read_text(path: Path, limit: int = LARGEST) -> str:
    """Return the content of a text file, which is UTF-8 whatever the locale."""
    try:
        return read(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise GradDivError(f"cannot read {path}: it is no UTF-8 text ({error.reason} at byte {error.start})") from None


def _kind(mode: int) -> str:
    kinds = {"a directory": stat.S_ISDIR, "a FIFO": stat.S_ISFIFO, "a device": stat.S_ISCHR, "a disk": stat.S_ISBLK}
    return next((name for name, test in kinds.items() if test(mode)), "no file")


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
            _flush_directory(path.parent)
    except GradDivError:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def writes_to(path: Path, kept: str = "") -> Iterator[None]:
    """Turn what the system says of a full or read-only disk into an error that names the file, and what is `kept`."""
    try:
        yield
    except OSError as error:
        raise GradDivError(f"cannot write {path}: {error.strerror or error}{kept}") from error


def is_directory(path: Path) -> bool:
    """Whether there is a directory of this name, which may be one that no file can have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def make_directory(path: Path) -> None:
    """Make the directory and the ones above it, where they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GradDivError(f"cannot make the directory {path}: {error.strerror}") from error


WITHOUT_CHECKSUM: set[Path] = set()
"""The files that were read so far and have no checksum."""


def note_missing_checksum(path: Path) -> None:
    """Say, of the first such file, that damage to it could not be noticed; what came with the package is known."""
    first, shipped = not WITHOUT_CHECKSUM, PACKAGE in path.resolve().parents
    if not shipped:
        WITHOUT_CHECKSUM.add(path)
    if first and not shipped:
        warnings.warn(
            f"{path} was written before files had checksums, as others may have been: it is read, but damage to it "
            "would not be noticed",
            GradDivWarning,
            stacklevel=2,
        )


def _flush_directory(path: Path) -> None:
    """Flush a directory to disk, so that a rename in it survives a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
