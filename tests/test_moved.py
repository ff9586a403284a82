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
    for name, new in {
        "graddiv.was": "graddiv.errors",
        "graddiv.was.inner": "graddiv.losses graddiv.errors",
        "graddiv.was.inner.Mistake": "graddiv.errors.GradDivError",
        "graddiv.was.ce": "graddiv.losses.ce",
    }.items():
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
def test_modules_below_it_and_names_that_went_elsewhere_are_found() -> None:
    with pytest.warns(DeprecationWarning, match=r"inner is now graddiv\.losses, graddiv\.errors"):
        inner = importlib.import_module("graddiv.was.inner")
    assert inner.Mistake is inner.GradDivError is GradDivError
    assert inner.ce is sys.modules["graddiv.was"].ce is importlib.import_module("graddiv.losses").ce
    with pytest.raises(AttributeError, match="nonsense"):
        _ = inner.nonsense
    with pytest.raises(ModuleNotFoundError, match=r"graddiv\.was\.nonsense"):
        importlib.import_module("graddiv.was.nonsense")


@pytest.mark.usefixtures("table")
def test_a_name_that_left_a_module_warns_when_it_is_used() -> None:
    getattr_ = moved.names_moved_from("graddiv.was")
    with pytest.warns(DeprecationWarning, match=r"graddiv\.was\.ce is now graddiv\.losses\.ce"):
        assert getattr_("ce") is importlib.import_module("graddiv.losses").ce
    with pytest.raises(AttributeError, match="nonsense"):
        getattr_("nonsense")


@pytest.mark.parametrize("old", list(moved.MOVED))
def test_every_old_name_leads_to_something(old: str) -> None:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        module, _, name = old.rpartition(".")
        try:
            importlib.import_module(old)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), name), old
    for new in moved.MOVED[old].split():
        assert moved.resolve_name(new) is not None


@pytest.mark.slow
def test_an_old_name_may_be_the_first_import() -> None:
    """While torch is imported, it asks all modules where they lie."""
    code = "from graddiv.auditing import Audit, Budget, audit; print(*(n.__module__ for n in (audit, Audit, Budget)))"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["graddiv.evaluation.audit", "graddiv.evaluation.card", "graddiv.evaluation.budget"]
