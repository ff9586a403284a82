"""Every command ends with what to do next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from graddiv.cli import app
from graddiv.evaluation.budget import BUDGETS
from graddiv.recipes import recipe
from graddiv.training import train
from tests.audit.planted import BUDGET
from tests.helpers import SETTINGS, no_type_checks

SMALL = tuple(f"--set={setting}" for setting in SETTINGS)
JUDGED = ("--examples=2", "--epsilon=0.1")

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "doctor": ((), ("RUN",)),
    "train": (("mnist-mini/adv-bnn", "--scale=demo", *SMALL),),
    "tune": (
        ("mnist-mini/adv-bnn+graddiv", "--scale=demo", *SMALL, "--lambdas=0.1", "--n=1", "--m=1", "--examples=2"),
    ),
    "attack": (("RUN", "--attacks=fgsm", "--modes=eot1", *JUDGED),),
    "measure": (("RUN", "--what=concentration", "--n=2", *JUDGED), ("RUN", "--what=checklist", "--quick", *JUDGED)),
    "compare": (("one=RUN", "again=RUN", "--attacks=fgsm", *JUDGED, "--out=comparisons/mine"),),
    "audit": (("RUN", *JUDGED, "--out=audits/mine"),),
    "board": (("audits",), ("audits/mine", "--rescore", "--model=RUN")),
    "report": (("RUN", "--out=report"), ("RUN", "--records"), ("RUN", "--records", "--csv")),
    "reproduce": (("--list",), ("demo", "--quick", "--dry-run"), ("table1", "--dry-run", "--data-root=nowhere")),
    "recipes": ((), ("mnist/adv-bnn",)),
    "data": ((), ("verify", "synthetic"), ("verify", "mnist", "--data-root=nowhere"), ("fetch", "mnist-mini")),
}
"""Each with arguments that make it small, in an order in which one finds what others made."""

MAY_FAIL = {"audit": 3, "data verify mnist": 1}
"""Exit codes: evidence that is not sufficient, a file that is missing."""


def all_commands(group: Any, path: str = "") -> Iterator[str]:
    for name, command in getattr(group, "commands", {}).items():
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{path}{name}"
        yield from all_commands(command, f"{path}{name} ")


def test_no_command_is_left_out() -> None:
    assert sorted(all_commands(get_command(app))) == sorted(COMMANDS)


def called(words: list[str]) -> Result:
    with no_type_checks():
        return CliRunner().invoke(app, words, catch_exceptions=False)


def ends_with_next(done: Result) -> bool:
    return done.stderr.rstrip().splitlines()[-1].startswith("next: ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # the networks are hardly trained
def test_every_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)  # not for the other tests of this process
    monkeypatch.setattr("graddiv.data.files.search_path", lambda root: [tmp_path / "nowhere"])
    monkeypatch.setitem(BUDGETS["audit"], "quick", BUDGET)
    with no_type_checks():
        train(recipe("mnist-mini/adv-bnn", "demo", SETTINGS), tmp_path / "run")
    for command, calls in COMMANDS.items():
        for call in calls:
            words = [*command.split(), *(word.replace("RUN", "run") for word in call)]
            done = called(words)
            expected = {code for start, code in MAY_FAIL.items() if " ".join(words).startswith(start)}
            assert done.exit_code in expected | {0}, (words, done.output)
            assert ends_with_next(done), (words, done.output)


def test_damage_is_followed_by_what_to_do(tmp_path: Path) -> None:
    with no_type_checks():
        train(recipe("mnist-mini/adv-bnn", "demo", SETTINGS), tmp_path / "run")
    next((tmp_path / "run" / "checkpoints").iterdir()).write_bytes(b"damaged")
    done = called(["doctor", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert ends_with_next(done)


@pytest.mark.slow
def test_the_quick_demo_makes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)
    done = called(["reproduce", "demo", "--quick"])
    assert done.exit_code == 0, done.output
    assert ends_with_next(done)
    made = {path.name for path in Path("reports/demo-quick").iterdir()}
    assert {"report.html", "plan.json", "accuracy-epsilon.png", "kappa.png", "scatter.png"} <= made
