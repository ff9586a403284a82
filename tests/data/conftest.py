import os
from collections.abc import Callable
from pathlib import Path

import pytest

from graddiv.data import SOURCES
from graddiv.data.files import located

OFFICIAL = os.environ.get("GRADDIV_DATA")


@pytest.fixture(autouse=True)
def private_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty home, cache and working folder, so that no test finds or leaves anything on this machine."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("GRADDIV_DATA", raising=False)


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """official(name) makes the data set's official files findable, or skips the test."""

    def official(name: str) -> None:
        if OFFICIAL:
            monkeypatch.setenv("GRADDIV_DATA", OFFICIAL)
        source = SOURCES[name]
        if not OFFICIAL or not all(located(source).values()):
            pytest.skip(f"the official {name} files are not below $GRADDIV_DATA")

    return official
