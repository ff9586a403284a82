"""Files that survive a crash and tell when they are damaged: everything that graddiv reads or writes goes through here.

Writes are atomic.  Readers take regular files only, of a reasonable size, in UTF-8 whatever the locale, and turn every
failure into a `GradDivError`; checkpoints, records and lines of logs carry a checksum, which is verified.
"""

from graddiv.store.documents import (
    differences,
    parse_toml,
    read_json,
    read_toml,
    write_json,
    write_once_or_match,
)
from graddiv.store.files import WITHOUT_CHECKSUM, MissingFileError, is_directory, make_directory, read, read_text, write
from graddiv.store.locks import LOCK, file_lock, is_locked, locked
from graddiv.store.logs import Log, check_size, read_log
from graddiv.store.npz import read_npz
from graddiv.store.tensors import read_arrays, read_state, read_tensors, write_arrays, write_tensors

__all__ = [
    "LOCK",
    "WITHOUT_CHECKSUM",
    "Log",
    "MissingFileError",
    "check_size",
    "differences",
    "file_lock",
    "is_directory",
    "is_locked",
    "locked",
    "make_directory",
    "parse_toml",
    "read",
    "read_arrays",
    "read_json",
    "read_log",
    "read_npz",
    "read_state",
    "read_tensors",
    "read_text",
    "read_toml",
    "write",
    "write_arrays",
    "write_json",
    "write_once_or_match",
    "write_tensors",
]
