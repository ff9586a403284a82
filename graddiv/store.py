"""Files that survive a crash: atomic writes, tensors beside their description, one writer to a directory.

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
"""The key of the header under which the description of the arrays stands, as JSON."""
LOCK = ".lock"


def write(path: Path, content: bytes) -> None:
    """Write the file whole or not at all: into a temporary file beside it, flushed to the disk, then renamed."""
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
    """Read a JSON file of ours."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise GradDivError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise GradDivError(f"cannot read {path}: {error}") from None


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", description: object) -> None:
    """Write torch tensors and their description as one file."""
    from safetensors.torch import save

    # a copy for each: the format knows neither other memory formats nor two names of one storage
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
    """The bytes, once they are known to be a whole file of ours, and the description."""
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
    """A file of JSON lines that can be cut back to where a checkpoint was taken."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open the log for writing at `size` bytes; what lies behind is of steps that will be taken again."""
        self.path = path
        if size:
            check_size(path, size)
        with self._explained():
            self._file = path.open("ab", buffering=0)  # nothing is left in a buffer when writing fails
            self._file.truncate(size)
            self._file.seek(size)

    def __call__(self, **values: object) -> None:
        """Append one line; JSON knows no NaN."""
        line = (json.dumps(values, allow_nan=False) + "\n").encode()
        with self._explained():
            while line:  # a disk that becomes full takes a part of it first
                line = line[self._file.write(line) :]

    @property
    def size(self) -> int:
        """Bytes written so far, safely on disk from now on."""
        with self._explained():
            os.fsync(self._file.fileno())
            return self._file.tell()

    @contextmanager
    def _explained(self) -> Iterator[None]:
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


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that was cut off by a crash is left out."""
    if not path.exists():
        raise GradDivError(f"there is no {path}")
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only writer of a directory; the lock of a process that died is free."""
    make_directory(directory)
    with file_lock(directory / LOCK):
        for left_over in _left_over(directory):
            left_over.unlink(missing_ok=True)
        yield


@contextmanager
def file_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock that this file of a directory stands for, if need be once others let go of it."""
    try:
        file = path.open("a+")
    except OSError as error:
        raise GradDivError(f"cannot write into {path.parent}: {error.strerror}") from error
    with file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif not _taken(file):
            time.sleep(0.05)  # is_locked, too, holds it for a moment
            if not _taken(file):
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
    """Whether a process is writing into the directory now, or holds another lock of it."""
    try:
        with (directory / name).open() as file:
            return not _taken(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _taken(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _left_over(directory: Path) -> Iterator[Path]:
    """Files of processes that were killed while they wrote; a directory with a lock of its own has its own writer."""
    for parent, below, names in os.walk(directory):
        below[:] = [name for name in below if not Path(parent, name, LOCK).exists()]
        yield from (Path(parent, name) for name in names if name.startswith(".") and name.endswith(".tmp"))


def make_directory(path: Path) -> None:
    """Make the directory and those above it."""
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
    """(key, value found, value wanted) wherever two JSON values differ."""
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
    """Make a rename durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
