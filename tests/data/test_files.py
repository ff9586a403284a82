import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from graddiv.data import SOURCES
from graddiv.data.files import fetch_root, inspect, locate, md5_of, search_path, verified
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
    assert search_path()[-1] == tmp_path / "home" / ".cache" / "graddiv" / "data"


def put(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"hello")


def test_first_copy_on_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, name = SOURCES["stl10"].files["train"][1], "stl10_binary/train_y.bin"
    assert locate(SOURCES["stl10"], file) is None
    put(tmp_path / "b", name)
    put(tmp_path / "c", name)
    monkeypatch.setenv("GRADDIV_DATA", os.pathsep.join(str(tmp_path / folder) for folder in "abc"))
    copy = locate(SOURCES["stl10"], file)
    assert copy is not None
    assert copy.path == tmp_path / "b" / name
    assert locate(SOURCES["stl10"], file, tmp_path / "a") is None  # a root that is given is the only one


def test_fetch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch_root(SOURCES["stl10"]) == tmp_path / "cache" / "graddiv" / "data"
    assert fetch_root(SOURCES["stl10"], tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("GRADDIV_DATA", os.pathsep.join(["/one", str(tmp_path / "two")]))
    assert fetch_root(SOURCES["stl10"]) == Path("/one")
    put(tmp_path / "two", "stl10_binary/test_y.bin")
    assert fetch_root(SOURCES["stl10"]) == tmp_path / "two"  # what is there is completed


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(GradDivError, match=r"folder cannot be read \(.+\), expected a readable file"):
        md5_of(tmp_path / "folder")


def test_inspect(tmp_path: Path) -> None:
    put(tmp_path, "stl10_binary/train_y.bin")
    found = {copy.path.name: md5 for copy, md5 in inspect(SOURCES["stl10"], tmp_path)}
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
    for copy, md5 in inspect(SOURCES[name]):
        assert md5 == copy.md5, copy.name


def test_embedded_file_is_checked_once_and_found_whatever_the_root(tmp_path: Path) -> None:
    ((copy, md5),) = inspect(SOURCES["mnist-mini"], tmp_path)
    assert copy.md5 == md5
    assert verified(SOURCES["mnist-mini"], SOURCES["mnist-mini"].files["test"][0], tmp_path) == copy.path
