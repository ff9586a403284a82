"""Old names work and say where the new ones are."""

import importlib
import subprocess
import sys
import warnings

import pytest

from graddiv import moved
from graddiv.errors import GradDivError


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, new in {"graddiv.was": "graddiv.errors", "graddiv.was.inner": "graddiv.losses graddiv.errors"}.items():
        monkeypatch.setitem(moved.MOVED, name, new)
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("table")
def test_a_module_that_moved_is_found_and_warns_at_the_import() -> None:
    with pytest.warns(DeprecationWarning, match=r"graddiv\.was is now graddiv\.errors"):
        from graddiv.was import GradDivError as Same  # type: ignore[import-not-found]
    assert Same is GradDivError


def test_the_warning_is_of_the_line_that_imports() -> None:
    code = "from graddiv import moved\nmoved.MOVED['graddiv.was'] = 'graddiv.errors'\nfrom graddiv.was import unknown"
    run = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.startswith("<string>:3: DeprecationWarning: graddiv.was is now graddiv.errors")


@pytest.mark.usefixtures("table")
@pytest.mark.filterwarnings("ignore:graddiv.was is now:DeprecationWarning")
def test_modules_below_it_are_found_in_several_places() -> None:
    with pytest.warns(DeprecationWarning, match=r"inner is now graddiv\.losses, graddiv\.errors"):
        inner = importlib.import_module("graddiv.was.inner")
    assert inner.GradDivError is GradDivError
    assert inner.ce is importlib.import_module("graddiv.losses").ce
    with pytest.raises(AttributeError, match="nonsense"):
        _ = inner.nonsense
    with pytest.raises(ModuleNotFoundError, match=r"graddiv\.was\.nonsense"):
        importlib.import_module("graddiv.was.nonsense")


@pytest.mark.parametrize("old", list(moved.MOVED))
def test_every_old_name_leads_to_something(old: str) -> None:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        importlib.import_module(old)
    for new in moved.MOVED[old].split():
        assert importlib.import_module(new) is not None


@pytest.mark.slow
def test_an_old_name_may_be_the_first_import() -> None:
    """While torch is imported, it asks all modules where they lie."""
    code = "from graddiv.auditing import Audit, Budget, audit; print(*(n.__module__ for n in (audit, Audit, Budget)))"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["graddiv.evaluation.audit", "graddiv.evaluation.card", "graddiv.evaluation.budget"]
