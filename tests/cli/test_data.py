import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graddiv.cli import app
from graddiv.data import SOURCES
from graddiv.data import fetch as fetching
from graddiv.data.dataset import Download
from graddiv.errors import GradDivError
from tests.data.loopback import Site, serve

BODY = b"official bytes" * 1000
MD5 = hashlib.md5(BODY).hexdigest()

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(*words) runs `graddiv data` on a machine without any data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("GRADDIV_DATA", raising=False)
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    return lambda *words: CliRunner().invoke(app, ["data", *map(str, words)])


def serve_stl10(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make 'stl10' a single file of this site."""
    source = replace(
        SOURCES["stl10"],
        files={"train": ("toy/file",)},
        md5s={"toy/file": MD5},
        downloads=(Download(f"{url}/file", MD5, "toy/file", len(BODY)),),
    )
    monkeypatch.setitem(SOURCES, "stl10", source)


def test_list_shows_where_each_is_or_how_to_get_it(run: Run, tmp_path: Path) -> None:
    result = run("list")
    assert result.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in result.stdout.splitlines()}
    assert set(lines) == {"mnist", "mnist-mini", "cifar10", "stl10", "synthetic"}
    assert lines["mnist-mini"] == "mnist-mini 1x28x28 4500 train 500 validation 1000 test embedded in the package"
    assert lines["synthetic"].endswith("generated")
    assert lines["stl10"] == (
        "stl10 3x96x96 4500 train 500 validation 8000 test missing; get it with 'graddiv data fetch stl10'"
    )


def test_list_finds(run: Run, tmp_path: Path) -> None:
    for name in ("train_X", "train_y", "test_X", "test_y"):
        path = tmp_path / "here" / "stl10_binary" / f"{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert f"found in {tmp_path / 'here'}\n" in run("list", "--data-root", tmp_path / "here").stdout


def test_verify_reports_each_file(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "stl10_binary"
    folder.mkdir(parents=True)
    (folder / "train_y.bin").write_bytes(b"wrong")
    result = run("verify", "stl10")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"stl10: {folder}/train_X.bin: missing",
        f"stl10: {folder}/train_y.bin: wrong, md5 {hashlib.md5(b'wrong').hexdigest()}, "
        "expected 5a34089d4802c674881badbb80307741",
        f"stl10: {folder}/test_X.bin: missing",
        f"stl10: {folder}/test_y.bin: missing",
    ]


def test_verify_all_does_not_mind_what_is_not_here(run: Run, tmp_path: Path) -> None:
    result = run("verify")
    assert result.exit_code == 0
    assert "mnist_mini.npz: ok" in result.stdout
    assert "cifar10: not here; get it with 'graddiv data fetch cifar10'" in result.stdout
    assert "synthetic: generated, no file to verify" in result.stdout
    assert run("verify", "cifar10").exit_code == 1
    (tmp_path / "data" / "stl10_binary").mkdir(parents=True)
    (tmp_path / "data" / "stl10_binary" / "test_y.bin").touch()
    assert run("verify").exit_code == 1


def test_fetch_then_verify(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Site({"/file": BODY}, cuts=[5000])) as site:
        serve_stl10(monkeypatch, site.url)
        result = run("fetch", "stl10", "--data-root", tmp_path / "here")
        assert result.exit_code == 0, result.exception
        assert result.stdout == f"stl10: fetched and verified in {tmp_path / 'here'}\n"
        assert (tmp_path / "here" / "toy" / "file").read_bytes() == BODY
        assert run("verify", "stl10", "--data-root", tmp_path / "here").stdout.endswith("toy/file: ok\n")
        again = run("fetch", "stl10", "--data-root", tmp_path / "here")
        assert again.stdout == f"stl10: found in {tmp_path / 'here'}, nothing to fetch\n"
        assert site.ranges == [None, "bytes=5000-"]


def test_fetch_repairs_where_the_bad_file_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "toy").mkdir(parents=True)
    (tmp_path / "data" / "toy" / "file").write_bytes(b"bad")
    with serve(Site({"/file": BODY})) as site:
        serve_stl10(monkeypatch, site.url)
        assert run("fetch", "stl10").exit_code == 0
    assert (tmp_path / "data" / "toy" / "file").read_bytes() == BODY


def test_fetch_of_wrong_bytes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Site({"/file": b"other bytes"})) as site:
        serve_stl10(monkeypatch, site.url)
        result = run("fetch", "stl10", "--data-root", tmp_path / "here")
    assert isinstance(result.exception, GradDivError)
    found = hashlib.md5(b"other bytes").hexdigest()
    assert f"gave 11 bytes with md5 {found}, expected 14000 bytes with md5 {MD5}" in str(result.exception)
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["mnist-mini", "synthetic"])
def test_nothing_to_fetch(run: Run, name: str) -> None:
    result = run("fetch", name)
    assert result.exit_code == 0
    assert result.stdout.endswith("nothing to fetch\n")


@pytest.mark.slow
def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "graddiv", "data", "fetch", "minst"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith("graddiv: unknown data set 'minst', did you mean 'mnist'? expected one of")
    assert result.stderr.count("\n") == 1


def test_what_is_done_must_be_known_and_a_download_named(run: Run) -> None:
    for words, message in ((("fech", "mnist"), "did you mean 'fetch'"), (("fetch",), "no data set is named")):
        assert message in str(run(*words).exception)
