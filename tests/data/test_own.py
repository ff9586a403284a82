"""Data of the user's own: every kind gives the same examples, splits are disjoint, mistakes are told."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from graddiv.data import load, source_of
from graddiv.data.own import own_source, read_own
from graddiv.errors import GradDivError

SIDE, CLASSES = 5, 3
CODE = """
import numpy as np, torch
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset

def pair():
    found = np.load(Path(__file__).parent / "xs.npz")
    return found["x"], found["y"]

def dataset():
    x, y = map(torch.from_numpy, pair())
    return TensorDataset(x.float() / 255, y)

loader = DataLoader(dataset(), batch_size=7)
nothing = 3
def of(size): return size
"""


def examples(n: int = 30) -> tuple[Tensor, Tensor]:
    """Bytes, sorted by class as the files of a folder are."""
    x = torch.randint(256, (n, 1, SIDE, SIDE + 1), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return x, (torch.arange(n) * CLASSES) // n


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """xs.npz, a folder of pictures with the same pixels, and code that refers to them."""
    from PIL import Image

    x, y = examples()
    np.savez(tmp_path / "xs.npz", x=x.numpy(), y=y.numpy())
    (tmp_path / "data.py").write_text(CODE)
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / "pictures" / "abc"[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(tmp_path / "pictures" / "abc"[label] / f"{i:02d}.png")
    return tmp_path


@pytest.mark.parametrize("reference", ["xs.npz", "pictures", "data.py:pair", "data.py:dataset", "data.py:loader"])
def test_every_kind_gives_the_same_splits(folder: Path, reference: str) -> None:
    source = own_source("mine", str(folder / reference))
    assert source.shape == (1, SIDE, SIDE + 1)
    assert source.classes == (("a", "b", "c") if reference == "pictures" else ("0", "1", "2"))
    assert (source.sizes, source.held_out) == ({"train": 27, "test": 3}, 2)
    x, y = examples()
    seen = list[int]()
    for split in ("train", "validation", "test"):
        found = load(source, split)
        images, labels = found.batch(slice(None))
        assert torch.allclose(images, x[found.ids].float() / 255, atol=1e-7)
        assert torch.equal(labels, y[found.ids])
        seen += found.ids.tolist()
    assert sorted(seen) == list(range(30)), "each example is in one split"
    assert len(set(load(source, "train").labels.tolist())) == CLASSES, "though they are sorted by class"


def test_a_test_split_of_its_own(folder: Path) -> None:
    x, y = examples(12)
    np.savez(folder / "test.npz", x=x.numpy(), y=y.numpy())
    np.savez(folder / "both.npz", x_train=x.numpy(), y_train=y.numpy(), x_test=x[:4].numpy(), y_test=y[:4].numpy())
    named = own_source("mine", str(folder / "xs.npz"), str(folder / "test.npz"))
    assert (named.sizes, len(named.sha256s)) == ({"train": 30, "test": 12}, 2)
    assert torch.equal(load(named, "test").images, x)
    assert source_of(str(folder / "both.npz")).sizes == {"train": 12, "test": 4}
    assert read_own(str(folder / "both.npz")).y.tolist() == y[:4].tolist(), "what is judged on is the test split"


def test_a_file_that_changes_is_read_again(folder: Path) -> None:
    path = str(folder / "xs.npz")
    before = own_source("mine", path).sha256s
    x, y = examples(40)
    np.savez(path, x=x.numpy(), y=y.numpy())
    assert own_source("mine", path).sha256s != before
    assert own_source("mine", path).sizes["train"] == 36


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("data.py:nothing", "is of type int, expected a torch Dataset, a DataLoader, a pair of arrays"),
        ("data.py:of", "data.py:of needs size, expected a function or class without required arguments"),
        ("data.py:other", "has no 'other'"),
        ("none.npz", "there is no"),
        ("wide.npz", r"looks like n h w c, expected n c h w: x.transpose\(0, 3, 1, 2\)"),
        ("normalized.npz", r"holds x in \[-1, 2\], expected whole numbers from 0 to 255, or floats from 0 to 1"),
        ("few.npz", "holds 4 images and 4 labels, expected as many, at least 10"),
        ("one.npz", "has 1 classes and the label 0"),
        ("named.npz", "holds pixels, expected the arrays x and y"),
        ("mixed", r"00.png has 1 x 5 x 5 .* and .*00.png 1 x 5 x 6, expected images of one size"),
        ("flat", "holds 0 images in 0 folders"),
    ],
)
def test_what_cannot_be_used_is_told(folder: Path, reference: str, message: str) -> None:
    from PIL import Image

    x, y = examples()
    np.savez(folder / "wide.npz", x=np.zeros((30, 8, 8, 3), np.uint8), y=y.numpy())
    np.savez(
        folder / "normalized.npz", x=np.linspace(-1, 2, 30 * 9, dtype=np.float32).reshape(30, 1, 3, 3), y=y.numpy()
    )
    np.savez(folder / "few.npz", x=x[:4].numpy(), y=y[:4].numpy())
    np.savez(folder / "one.npz", x=x.numpy(), y=0 * y.numpy())
    np.savez(folder / "named.npz", pixels=x.numpy())
    (folder / "flat").mkdir()
    for name, width in (("a", 6), ("b", 5)):
        (folder / "mixed" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((5, width), np.uint8)).save(folder / "mixed" / name / "00.png")
    with pytest.raises(GradDivError, match=message):
        own_source("mine", str(folder / reference))


def test_a_damaged_picture_is_named(folder: Path) -> None:
    (folder / "pictures" / "b" / "15.png").write_bytes(b"no picture")
    with pytest.raises(GradDivError, match=r"cannot read .*b/15.png as an image"):
        read_own(str(folder / "pictures"))


def test_a_few_pictures_are_of_all_classes(folder: Path) -> None:
    assert read_own(str(folder / "pictures"), examples=3).y.tolist() == [0, 1, 2]
