"""Arrays with their description in one file: safetensors, a JSON header and raw bytes, which run no code when read.

The header also holds a sha256 of the whole file, computed with zeros in its own place: of the values, and of the names,
types and shapes that say how to read them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from graddiv.errors import GradDivError
from graddiv.store import files
from graddiv.store.documents import parse_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

DESCRIPTION = "graddiv"
"""The key in the metadata of the header under which the description of the arrays is stored, as JSON."""
CHECKSUM = "sha256"
"""The key of the checksum."""
UNKNOWN = "0" * 64
"""Stands for the checksum while it is computed."""

Loaded = TypeVar("Loaded")


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", description: Mapping[str, object]) -> None:
    """Write torch tensors and their description as one file."""
    from safetensors.torch import save

    # Copies, because safetensors stores neither other memory formats nor two names of the same storage.
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    files.write(path, _with_description(save(plain), description))


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read what `write_tensors` wrote."""
    from safetensors.torch import load

    content, description = _read(path)
    return _loaded(load, content, path), description


def read_state(path: Path) -> "dict[str, Tensor]":
    """Read a safetensors file of parameters by name, whoever wrote it."""
    from safetensors.torch import load

    content = files.read(path)
    metadata = _metadata(content, path, f"cannot read {path} as safetensors")
    if CHECKSUM in metadata and DESCRIPTION in metadata:
        _verify(content, metadata[CHECKSUM], path)
    return _loaded(load, content, path)


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]", description: Mapping[str, object]) -> None:
    """Write NumPy arrays and their description as one file."""
    import numpy as np
    from safetensors.numpy import save

    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    files.write(path, _with_description(save(plain), description))


def read_arrays(path: Path) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """Read what `write_arrays` wrote."""
    from safetensors.numpy import load

    content, description = _read(path)
    return _loaded(load, content, path), description


def _with_description(content: bytes, description: Mapping[str, object]) -> bytes:
    """Add a description and the checksum to the header of a safetensors file."""
    # by hand, since safetensors would write the two in a random order, and equal files must have equal bytes
    length = _header_length(content)
    metadata = {DESCRIPTION: json.dumps(description), CHECKSUM: UNKNOWN}
    header = json.dumps({"__metadata__": metadata, **json.loads(content[8 : 8 + length])}, separators=(",", ":"))
    padded = header.encode().ljust(-(-len(header.encode()) // 8) * 8)
    begin, data = len(padded).to_bytes(8, "little") + padded, memoryview(content)[8 + length :]
    known = begin.replace(_field(UNKNOWN), _field(_digest(begin, data)), 1)
    return b"".join([known, data])


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes and the description of a file, once it is sure that graddiv wrote just them."""
    content = files.read(path)
    metadata = _metadata(content, path, f"{path} is not a file that graddiv wrote")
    if metadata.keys() == {DESCRIPTION, CHECKSUM}:
        _verify(content, metadata[CHECKSUM], path)
    elif metadata.keys() == {DESCRIPTION}:
        files.note_missing_checksum(path)
    else:
        raise GradDivError(f"{path} is not a file that graddiv wrote")
    return content, parse_json(str(metadata[DESCRIPTION]), str(path))


def _metadata(content: bytes, path: Path, complaint: str) -> dict[str, Any]:
    """The metadata of the header, once it is sure that the file is as long as the header says."""
    length = _header_length(content)
    try:
        header = parse_json(content[8 : 8 + length].decode("utf-8"), str(path))
        metadata = header.pop("__metadata__", {})
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        expected = 8 + length + int(end)
    except (ValueError, LookupError, TypeError, OverflowError):
        raise GradDivError(complaint) from None
    if not isinstance(metadata, dict):
        raise GradDivError(complaint)
    if len(content) != expected:
        raise GradDivError(
            f"{path} is damaged: it has {len(content)} bytes where {expected} were expected{files.WHAT_TO_DO}"
        )
    return metadata


def _verify(content: bytes, checksum: object, path: Path) -> None:
    begin, data = content[: 8 + _header_length(content)], memoryview(content)[8 + _header_length(content) :]
    found = _digest(begin.replace(_field(str(checksum)), _field(UNKNOWN), 1), data)
    if found != checksum:
        raise GradDivError(
            f"{path} is damaged: its content has sha256 {found[:10]}, expected {str(checksum)[:10]}{files.WHAT_TO_DO}"
        )


def _loaded(load: Callable[[bytes], Loaded], content: bytes, path: Path) -> Loaded:
    try:
        return load(content)
    except Exception as error:  # a header that contradicts itself can raise anything
        raise GradDivError(f"cannot read {path} as safetensors: {error}") from None


def _header_length(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def _field(checksum: str) -> bytes:
    return f'"{CHECKSUM}":"{checksum}"'.encode()


def _digest(begin: bytes, data: memoryview) -> str:
    digest = hashlib.sha256(begin)
    digest.update(data)
    return digest.hexdigest()
