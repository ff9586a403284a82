"""Logs of JSON lines, each with a checksum of all that ends with it: a line that is changed or missing is noticed."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from graddiv.errors import GradDivError
from graddiv.store import files
from graddiv.store.documents import parse_json

BEGIN = b'{"sha256": "'
"""How a line with a checksum begins."""
OLD_BEGIN = b'{"event"'
"""How a line without one begins, as earlier versions wrote them: a damaged beginning is not taken for an old one."""
DIGITS = 16
"""Of a line's checksum, hexadecimal."""


class Log:
    """A file of JSON lines that can be cut back to its length at the time of a checkpoint."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open the log for writing at `size` bytes; later lines are of steps that will be repeated, and are cut off."""
        self.path = path
        if size:
            read_log(path, size)
        self._digest = hashlib.sha256(files.read(path)[:size] if size else b"")
        with files.writes_to(path):
            self._file = path.open("ab", buffering=0)  # a buffer would lose lines when writing fails
            self._file.truncate(size)
            self._file.seek(size)

    def __call__(self, **values: object) -> None:
        """Append one line; NaN is an error, because JSON has no NaN."""
        text = json.dumps({"sha256": "", **values}, allow_nan=False).encode()[len(BEGIN) :]
        line = BEGIN + _checksum(self._digest, text) + text + b"\n"
        self._digest.update(line)
        with files.writes_to(self.path):
            while line:  # a disk that is nearly full takes a part of the line first
                line = line[self._file.write(line) :]

    @property
    def size(self) -> int:
        """The number of bytes written so far; they are flushed to disk first."""
        with files.writes_to(self.path):
            os.fsync(self._file.fileno())
            return self._file.tell()

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
    if size is not None:
        check_size(path, size)
    *lines, rest = files.read(path)[:size].split(b"\n")
    digest, found, with_checksum = hashlib.sha256(), [], False
    for number, line in enumerate(lines, 1):
        with_checksum = line.startswith(BEGIN) or with_checksum
        intact = _is_intact(digest, line) if with_checksum else line.startswith(OLD_BEGIN)
        if not intact:
            raise _damaged(path, number)
        values = parse_json(_decoded(line, path, number), f"{path}, line {number}")
        values.pop("sha256", None)
        found.append(values)
        digest.update(line + b"\n")
    # a line that was cut off is one thing, a whole one whose end of line has become another sign is another
    if _is_intact(digest, rest[:-1]) or (size is not None and rest):
        raise _damaged(path, len(lines) + 1)
    if found and not with_checksum:
        files.note_missing_checksum(path)
    return found


def _is_intact(digest: "hashlib._Hash", line: bytes) -> bool:
    """Whether a line has the checksum of what is before it and of itself."""
    checksum, text = line[len(BEGIN) : len(BEGIN) + DIGITS], line[len(BEGIN) + DIGITS :]
    return line.startswith(BEGIN) and checksum == _checksum(digest, text)


def _checksum(before: "hashlib._Hash", text: bytes) -> bytes:
    digest = before.copy()
    digest.update(text)
    return digest.hexdigest()[:DIGITS].encode()


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise _damaged(path, number) from None


def _damaged(path: Path, number: int) -> GradDivError:
    return GradDivError(f"{path} is damaged: line {number} is not as it was written{files.WHAT_TO_DO}")
