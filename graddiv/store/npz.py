"""NumPy's .npz files, which users bring: whatever is wrong with them is told by name."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from graddiv.errors import GradDivError
from graddiv.store import files

if TYPE_CHECKING:
    import numpy as np


def read_npz(path: Path, *names: str) -> "dict[str, np.ndarray]":
    """Return these arrays of an .npz file, or all if no name is given."""
    import numpy as np

    content = files.read(path)
    if not content.startswith(b"PK"):  # else NumPy takes it for a pickle, or for a single array
        raise GradDivError(f"cannot read {path}: it is no .npz file, expected one that numpy.savez wrote")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            found = {name: archive[name] for name in names or archive.files if name in archive.files}
    except Exception as error:  # zip, its compression and the header of an array each have errors of their own
        raise GradDivError(f"cannot read {path} as .npz: {error}") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise GradDivError(f"{path} lacks the array {missing[0]!r}")
    return found
