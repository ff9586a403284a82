"""Files that survive a crash: atomic writes, arrays stored with their description, one writer to a directory.

Arrays are stored as safetensors: a JSON header and raw bytes, readable without torch and without running any code.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from graddiv.errors import GradDivError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

DESCRIPTION = "graddiv"
"""The key in the safetensors header under which the description of the arrays is stored, as JSON."""
LOCK = ".lock"
"""The name of the file in a directory whose lock its writer holds."""


def write(path: Path, content: bytes) -> None:
    """Write the file completely or not at all: a temporary file beside it is written, flushed to disk, and renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        kept = "; the file from before is untouched" if path.exists() else ""
        raise GradDivError(f"cannot write {path}: {error.strerror or error}{kept}") from error


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise GradDivError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise GradDivError(f"cannot read {path}: {error}") from None


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", description: object) -> None:
    """Write torch tensors and their description as one file."""
    from safetensors.torch import save

    # Copies, because safetensors stores neither other memory formats nor two names of the same storage.
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write(path, save(plain, _header(description)))


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], Any]":
    """Read what `write_tensors` wrote."""
    from safetensors.torch import load

    content, description = _read(path)
    return load(content), description


def read_state(path: Path) -> "dict[str, Tensor]":
    """Read a safetensors file of parameters by name, whoever wrote it."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise GradDivError(f"there is no {path}") from None
    except (OSError, SafetensorError) as error:
        raise GradDivError(f"cannot read {path} as safetensors: {error}") from None


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]", description: object) -> None:
    """Write NumPy arrays and their description as one file."""
    import numpy as np
    from safetensors.numpy import save

    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write(path, save(plain, _header(description)))


def read_arrays(path: Path) -> "tuple[dict[str, np.ndarray], Any]":
    """Read what `write_arrays` wrote."""
    from safetensors.numpy import load

    content, description = _read(path)
    return load(content), description


def _header(description: object) -> dict[str, str]:
    return {DESCRIPTION: json.dumps(description)}


def _read(path: Path) -> tuple[bytes, Any]:
    """Return the bytes and the description of a file, once it is sure that graddiv wrote it and it is complete."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise GradDivError(f"there is no {path}") from None
    except OSError as error:
        raise GradDivError(f"cannot read {path}: {error.strerror}") from None
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        described = json.loads(header["__metadata__"][DESCRIPTION])
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError):
        raise GradDivError(f"{path} is not a file that graddiv wrote") from None
    if len(content) != 8 + length + end:
        raise GradDivError(f"{path} is damaged: it has {len(content)} bytes where {8 + length + end} were expected")
    return content, described


class Log:
    """A file of JSON lines that can be cut back to its length at the time of a checkpoint."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open the log for writing at `size` bytes; later lines are of steps that will be repeated, and are cut off."""
        self.path = path
        if size:
            check_size(path, size)
        with self._named_errors():
            self._file = path.open("ab", buffering=0)  # a buffer would lose lines when writing fails
            self._file.truncate(size)
            self._file.seek(size)

    def __call__(self, **values: object) -> None:
        """Append one line; NaN is an error, because JSON has no NaN."""
        line = (json.dumps(values, allow_nan=False) + "\n").encode()
        with self._named_errors():
            while line:  # a disk that is nearly full takes a part of the line first
                line = line[self._file.write(line) :]

    @property
    def size(self) -> int:
        """The number of bytes written so far; they are flushed to disk first."""
        with self._named_errors():
            os.fsync(self._file.fileno())
            return self._file.tell()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn errors of the system into ones that name the file."""
        try:
            yield
        except OSError as error:
            raise GradDivError(f"cannot write {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def check_size(path: Path, size: int) -> None:
    """Refuse a log that is shorter than the checkpoint says it was."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise GradDivError(f"{path} has {found} bytes where the checkpoint knows of {size}: it was cut by hand")


def read_log(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of a log, or those in its first `size` bytes, without a last line that a crash has cut off."""
    if not path.exists():
        raise GradDivError(f"there is no {path}")
    lines = path.read_bytes()[:size].split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only writer of a directory, and delete what killed writers left; the lock of a dead process is free."""
    make_directory(directory)
    with file_lock(directory / LOCK):
        for abandoned in _abandoned_files(directory):
            abandoned.unlink(missing_ok=True)
        yield


@contextmanager
def file_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on this file; if another process has it, wait for it or raise an error."""
    try:
        file = path.open("a+")
    except OSError as error:
        raise GradDivError(f"cannot write into {path.parent}: {error.strerror}") from error
    with file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif not _try_lock(file):
            time.sleep(0.05)  # try again, since is_locked of another process holds the lock for a moment
            if not _try_lock(file):
                file.seek(0)
                raise GradDivError(
                    f"{path.parent} is being written by {file.read().strip() or 'another process'}: "
                    "wait for it to end, or choose another directory with --out"
                )
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def is_locked(directory: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of the directory, by default that of its writer."""
    try:
        with (directory / name).open() as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _try_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
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


def make_directory(path: Path) -> None:
    """Make the directory and the ones above it, where they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GradDivError(f"cannot make the directory {path}: {error.strerror}") from error


def write_once_or_match(
    path: Path, expected: Mapping[str, object], normalise: Callable[[Any], Mapping[str, object]] = dict
) -> None:
    """Write `expected` as JSON if the file is new; otherwise refuse to go on unless it holds the same.

    `normalise` brings what an earlier version wrote into the form of `expected`.
    """
    if not path.exists():
        write_json(path, expected)
        return
    different = differences(normalise(read_json(path)), json.loads(json.dumps(expected)))
    if different:
        key, found, wanted = different[0]
        more = f" (and {len(different) - 1} more keys)" if len(different) > 1 else ""
        raise GradDivError(
            f"{path.parent} was made with {key} = {found!r}, now it is {wanted!r}{more}: "
            "choose another directory with --out, or the settings of that one"
        )


def differences(found: object, wanted: object, key: str = "") -> list[tuple[str, object, object]]:
    """Return (key, value found, value wanted) for every place at which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        mine, theirs = cast("dict[str, object]", found), cast("dict[str, object]", wanted)
        keys = [*mine, *(k for k in theirs if k not in mine)]
        return [
            difference
            for k in keys
            for difference in differences(mine.get(k), theirs.get(k), f"{key}.{k}" if key else k)
        ]
    return [] if found == wanted else [(key, found, wanted)]


def _flush_directory(path: Path) -> None:
    """Flush a directory to disk, so that a rename in it survives a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
