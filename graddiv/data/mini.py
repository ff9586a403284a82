"""mnist-mini: the part of MNIST that ships with the package (see MNIST_LICENSE.txt)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from graddiv.data.source import File, Part, RawExamples, Source

PER_CLASS: dict[Part, int] = {"train": 500, "test": 100}
FILE = File({"mnist_mini.npz": "7b806bbb6c31c0add8e9426e74928e4e"})


def read(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Read one part of the archive that `scripts/cut_mnist_mini.py` wrote."""
    with np.load(paths[0], allow_pickle=False) as arrays:
        images, labels, ids = (arrays[f"{part}_{kind}"] for kind in ("images", "labels", "ids"))
    return RawExamples(images[:, None], labels.astype(np.int64), ids.astype(np.int64))


def balanced_rows(labels: Int64[np.ndarray, " n"], per_class: int) -> Int64[np.ndarray, " m"]:
    """Rows of the first `per_class` examples of each class, in rounds: the first of each class, the second, ...

    Each round is in file order.  In plain file order the last tenth, which is the validation split, would hold
    none of the frequent classes, whose first 500 come early.
    """
    rows = np.stack([np.flatnonzero(labels == label)[:per_class] for label in range(10)])
    return np.sort(rows, axis=0).T.reshape(-1)


SOURCE = Source(
    name="mnist-mini",
    title="MNIST-mini",
    shape=(1, 28, 28),
    sizes={part: 10 * per_class for part, per_class in PER_CLASS.items()},
    held_out=500,
    classes=tuple("0123456789"),
    read=read,
    files={"train": (FILE,), "test": (FILE,)},
    embedded_in=Path(__file__).parent,
)
