"""Each check says what raises it, what it means and what to do, in the terminal and in docs/checks.md."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from graddiv.cli import app
from graddiv.errors import GradDivError
from graddiv.evaluation.explanations import explain
from graddiv.evaluation.inspection import BEHAVIOURS, CHECKS, Inspection, check
from graddiv.registries import Registry
from tests.markdown import DOCS

KNOWN = {**CHECKS, **BEHAVIOURS}


@pytest.mark.parametrize("name", KNOWN)
def test_every_check_has_the_three_parts(name: str) -> None:
    parts = KNOWN[name].explanation
    assert all(len(text) > 10 and text.endswith(".") for text in parts.values()), parts
    assert not any("Means:" in text or "Do:" in text for text in parts.values())


def test_a_check_without_them_is_explained_as_far_as_it_goes() -> None:
    @check("pixels are dark", of=Registry("check", {}))
    def dark(seen: Inspection) -> tuple[str, str, dict[str, object]]:
        """Pixels below one half."""
        return "pass", "", {}

    assert list(filter(None, CHECKS["scale"]._replace(run=dark).explanation.values())) == ["Pixels below one half."]


def test_the_page_is_made_of_the_docstrings() -> None:
    """If not: graddiv audit --explain all > docs/checks.md."""
    assert (DOCS / "checks.md").read_text(encoding="utf-8").rstrip() == explain("all").rstrip()


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["audit", "--explain", "replay"])
    assert result.exit_code == 0
    said = result.output.splitlines()
    assert said[0] == "replay: the same noise gives the same answer"
    assert [line.partition(":")[0] for line in said[1:]] == ["Raised if", "What it means", "What to do"]
    with pytest.raises(GradDivError, match=r"unknown check 'replays', did you mean 'replay'\? expected one of scale, "):
        CliRunner().invoke(app, ["audit", "--explain", "replays"], catch_exceptions=False)
    with pytest.raises(GradDivError, match="MODEL is missing"):
        CliRunner().invoke(app, ["audit"], catch_exceptions=False)


def test_the_page_is_found() -> None:
    assert "(checks.md)" in (DOCS / "audit.md").read_text(encoding="utf-8")
    assert Path(DOCS / "checks.md").exists()
