import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from graddiv.data import files, lookup
from graddiv.data.files import cache_folder, fetch_root, inspect, locate, md5_of, search_path, verified
from graddiv.data.mini import SOURCE as MINI
from graddiv.data.stl10 import SOURCE as STL10
from graddiv.errors import GradDivError


def test_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    usual = [elsewhere / "data", home / "data", home / "datasets", cache / "graddiv" / "data"]
    assert search_path() == usual
    monkeypatch.setenv("GRADDIV_DATA", os.pathsep.join(["/one", "~/two", ""]))
    assert search_path() == [Path("/one"), home / "two", *usual]
    assert search_path("~/three") == [home / "three"]


def test_cache_folder_without_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "graddiv"


def put(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"hello")


def test_first_copy_on_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, name = STL10.files["train"][1], "stl10_binary/train_y.bin"
    assert locate(STL10, file) is None
    put(tmp_path / "b", name)
    put(tmp_path / "c", name)
    monkeypatch.setenv("GRADDIV_DATA", os.pathsep.join(str(tmp_path / folder) for folder in "abc"))
    copy = locate(STL10, file)
    assert copy is not None
    assert copy.path == tmp_path / "b" / name
    assert locate(STL10, file, tmp_path / "a") is None  # a root that is given is the only one


def test_fetch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch_root(STL10) == tmp_path / "cache" / "graddiv" / "data"
    assert fetch_root(STL10, tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("GRADDIV_DATA", os.pathsep.join(["/one", str(tmp_path / "two")]))
    assert fetch_root(STL10) == Path("/one")
    put(tmp_path / "two", "stl10_binary/test_y.bin")
    assert fetch_root(STL10) == tmp_path / "two"  # what is there is completed


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths whose md5 was computed and not remembered."""
    paths: list[Path] = []
    compute = files.digest_of

    def counting(path: Path) -> str:
        paths.append(path)
        return compute(path)

    monkeypatch.setattr(files, "digest_of", counting)
    return paths


def test_md5_is_remembered(tmp_path: Path, computed: list[Path]) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"one")
    other.write_bytes(b"other")
    for _ in range(3):
        assert md5_of(path) == hashlib.md5(b"one").hexdigest()
        assert md5_of(other) == hashlib.md5(b"other").hexdigest()
    assert computed == [path, other]
    assert md5_of(path, remembered=False) == hashlib.md5(b"one").hexdigest()
    assert len(computed) == 3


def test_changed_file_is_computed_again(tmp_path: Path, computed: list[Path]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    md5_of(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(0, 0))
    assert md5_of(path) == hashlib.md5(b"two").hexdigest()
    path.write_bytes(b"three")
    os.utime(path, ns=(0, 0))
    assert md5_of(path) == hashlib.md5(b"three").hexdigest()
    assert len(computed) == 3


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[Path]) -> None:
    (tmp_path / "in-the-way").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in-the-way"))
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert md5_of(path) == md5_of(path) == hashlib.md5(b"one").hexdigest()
    assert len(computed) == 2


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"PATH": 3}', '{"PATH": [3]}', "\x00"])
def test_cache_that_is_damaged(tmp_path: Path, content: str) -> None:
    path, memory = tmp_path / "file", tmp_path / "cache" / "graddiv" / "md5.json"
    path.write_bytes(b"one")
    memory.parent.mkdir(parents=True)
    memory.write_text(content.replace("PATH", str(path)))
    assert md5_of(path) == hashlib.md5(b"one").hexdigest()
    assert json.loads(memory.read_text())[str(path)][2] == md5_of(path)


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(GradDivError, match=r"folder cannot be read \(.+\), expected a readable file"):
        md5_of(tmp_path / "folder")


def test_inspect(tmp_path: Path) -> None:
    put(tmp_path, "stl10_binary/train_y.bin")
    found = {copy.path.name: md5 for copy, md5 in inspect(STL10, tmp_path)}
    assert found == {
        "train_X.bin": None,
        "train_y.bin": hashlib.md5(b"hello").hexdigest(),
        "test_X.bin": None,
        "test_y.bin": None,
    }


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["mnist", "cifar10", "stl10"])
def test_every_official_file_has_its_md5(official: Callable[[str], None], name: str) -> None:
    official(name)
    for copy, md5 in inspect(lookup(name)):
        assert md5 == copy.md5, copy.name


def test_embedded_file_is_checked_once_and_found_whatever_the_root(tmp_path: Path) -> None:
    ((copy, md5),) = inspect(MINI, tmp_path)
    assert copy.md5 == md5
    assert verified(MINI, MINI.files["test"][0], tmp_path) == copy.path
