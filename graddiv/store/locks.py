"""One writer to a directory: the lock of a dead process is free."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from graddiv.errors import GradDivError
from graddiv.store.files import make_directory, writes_to

LOCK = ".lock"
"""The name of the file in a directory whose lock its writer holds."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only writer of a directory, and delete what killed writers left; the lock of a dead process is free."""
    make_directory(directory)
    with file_lock(directory / LOCK):
        for abandoned in _abandoned_files(directory):
            with writes_to(abandoned):
                abandoned.unlink(missing_ok=True)
        yield


@contextmanager
def file_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on this file; if another process has it, wait for it or raise an error."""
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise GradDivError(f"cannot write into {path.parent}: {error.strerror}") from error
    with file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif not _try_lock(file):
            time.sleep(0.05)  # try again, since is_locked of another process holds the lock for a moment
            if not _try_lock(file):
                file.seek(0)
                owner = file.read(200).decode("utf-8", "replace").strip() or "another process"
                raise GradDivError(
                    f"{path.parent} is being written by {owner}: wait for it to end, or choose another directory with "
                    "--out"
                )
        with writes_to(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def is_locked(directory: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of the directory, by default that of its writer."""
    try:
        # without O_NONBLOCK, a FIFO of this name would have to be waited for
        with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise GradDivError(f"cannot read {directory / name}: {error.strerror}") from error


def _try_lock(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock if nobody has it, and return whether that worked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _abandoned_files(directory: Path) -> Iterator[Path]:
    """Yield the temporary files of killed writers; directories below with a lock of their own are left out."""
    for parent, below, names in os.walk(directory):
        below[:] = [name for name in below if not Path(parent, name, LOCK).exists()]
        yield from (Path(parent, name) for name in names if name.startswith(".") and name.endswith(".tmp"))
