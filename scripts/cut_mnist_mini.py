"""Cut graddiv/data/mnist_mini.npz from the official MNIST files: python scripts/cut_mnist_mini.py [--data-root DIR].

Takes the first 500 training images and the first 100 test images of each class; all of the former lie well before
the last 5,000, the paper's validation part.
"""

import argparse

import numpy as np

from graddiv.data import SOURCES, load
from graddiv.data.dataset import PACKAGE
from graddiv.data.files import md5_of


def balanced_rows(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Rows of the first `per_class` examples of each class, in rounds: the first of each class, the second, ...

    Each round is in file order.  In plain file order the last tenth, which is the validation split, would hold
    none of the frequent classes, whose first 500 come early.
    """
    rows = np.stack([np.flatnonzero(labels == label)[:per_class] for label in range(10)])
    return np.sort(rows, axis=0).T.reshape(-1)


def cut(root: str | None = None) -> dict[str, np.ndarray]:
    """Arrays of the archive by name."""
    arrays = {}
    for part, examples in SOURCES["mnist-mini"].sizes.items():
        official = load("mnist", part, root)
        rows = balanced_rows(official.labels.numpy(), examples // 10)
        arrays[f"{part}_images"] = official.images.numpy()[rows, 0]
        arrays[f"{part}_labels"] = official.labels.numpy()[rows].astype(np.uint8)
        arrays[f"{part}_ids"] = official.ids.numpy()[rows].astype(np.int32)
    return arrays


def main() -> None:
    """Write the archive and print its md5, which graddiv/data/sources.toml records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", help="folder that holds MNIST/raw (default: where graddiv looks)")
    arguments = parser.parse_args()
    path = PACKAGE / "mnist_mini.npz"
    np.savez_compressed(path, **cut(arguments.data_root))  # type: ignore[arg-type]
    print(f"{path}: {path.stat().st_size} bytes, md5 {md5_of(path)}")


if __name__ == "__main__":
    main()
