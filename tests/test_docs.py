"""The pages of docs/: Python blocks run, commands are understood, links lead somewhere, equations and code name
each other.

The tutorials run when the site is built (`make docs`).  The blocks of a page run one after the other in one namespace,
which begins with stand-ins for what the page leaves to its reader.
"""

import ast
import importlib.util
import inspect
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.main import get_command

from graddiv import bayesian
from graddiv.cli import app
from graddiv.evaluation.budget import BUDGETS
from graddiv.evaluation.card import ABOUT, card_of
from graddiv.runs import Run
from graddiv.seeding import isolated
from tests.audit import planted
from tests.helpers import no_type_checks
from tests.markdown import DOCS, PAGES, ROOT, all_commands, commands, python_blocks

SLOW = ("audit.md",)
EQUATIONS = re.findall(r"\]\(\.\./(graddiv/[\w/]+\.py)\)((?:[:,;]? *(?:and )?`\w+[^`]*`)*)", PAGES["equations.md"])


WITH_PYTHON = [page for page in PAGES if python_blocks(page)]


def stand_ins() -> dict[str, Any]:
    """A module of the reader's (random by dropout), a randomized network, a stochastic model, a batch."""
    x, y = planted.examples(12)
    with isolated(0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4)).eval()
    return {
        **{"my_module": module, "network": module, "x": x, "y": y, "quilt": lambda x: x.round()},
        **{"F": bayesian(planted.Linear(), prior_sigma=0.1), "model": planted.Noisy(planted.Linear())},
    }


def test_there_is_something_to_run() -> None:
    assert {"audit.md", "concepts.md", "files.md", "howto.md", "zoo.md"} <= set(WITH_PYTHON)
    assert len(all_commands()) > 30
    assert len(EQUATIONS) > 20


@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # the stand-ins are untrained
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in WITH_PYTHON]
)
def test_python_blocks(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BUDGETS["audit"], "quick", planted.BUDGET)
    namespace = stand_ins()
    with no_type_checks():
        for code in python_blocks(page):
            exec(compile(code, page, "exec"), namespace)


@pytest.mark.parametrize(("page", "command"), all_commands())
def test_commands_are_understood(page: str, command: str) -> None:
    program: Any = get_command(app)
    words = shlex.split(command)[1:]
    while words and words[0] in getattr(program, "commands", {}):
        program, words = program.commands[words[0]], words[1:]
    assert not hasattr(program, "commands") or not words or words[0].startswith("--"), f"no command {words[0]}"
    if hasattr(program, "commands"):  # its own options, --install-completion among them, act while they are parsed
        assert set(words) <= {option for parameter in program.params for option in parameter.opts}
    elif words:  # otherwise the text only names it
        with no_type_checks():
            program.make_context(command, words)  # raises where a word or an option is unknown


@pytest.mark.parametrize("page", PAGES)
def test_other_commands_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(PAGES[page], "make"):
        for word in shlex.split(command)[1:]:
            assert "=" in word or f"\n{word}:" in makefile, command
    for module in re.findall(r"python -m ([\w.]+)", PAGES[page]):
        if not module.endswith(".NAME"):  # which stands for any
            assert importlib.util.find_spec(module) is not None, module


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="pages link to results, which an sdist leaves out")
@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_on_github_too(page: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", PAGES[page]):
        if "://" not in target:
            assert ((DOCS / page).parent / target).exists(), target


def test_help_has_two_examples() -> None:
    program: Any = get_command(app)
    for name, command in program.commands.items():
        examples = [part for part in command.help.split("\n\n") if part.startswith(f"graddiv {name}")]
        assert len(examples) >= 2 or name in ("attack", "measure", "audit"), name
        for example in examples:
            with no_type_checks():
                command.make_context(name, shlex.split(example, comments=True)[2:])


def test_equations_name_what_is_there() -> None:
    for path, names in EQUATIONS:
        tree = ast.parse((ROOT / path).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined |= {t.id for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets
                    if isinstance(t, ast.Name)}  # fmt: skip
        for name in re.findall(r"`([\w.]+)", names):
            assert set(name.split(".")) <= defined, f"{path} has no {name}"


def test_code_and_equations_name_each_other() -> None:
    naming = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "graddiv").rglob("*.py")
        if "docs/equations.md" in (ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    assert naming == {path for path, _ in EQUATIONS}


def test_supported_versions_are_the_same_everywhere() -> None:
    """In pyproject.toml, in what CI runs (the oldest and the newest), and in what docs/api/index.md promises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    torch = next(d for d in project["dependencies"] if d.startswith("torch"))
    oldest, beyond = re.findall(r"2\.(\d+)", torch)
    newest = int(beyond) - 1
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert project["requires-python"] == f">={pythons[0]}"
    assert re.search(r"python: \[(.*)\]", ci)[1] == f'"{pythons[0]}", "{pythons[-1]}"'  # type: ignore[index]
    assert re.search(r"torch: \[(.*)\]", ci)[1] == f'"2.{oldest}.0", "2.{newest}.0"'  # type: ignore[index]
    assert f"Python {pythons[0]} to {pythons[-1]} and torch 2.{oldest} to 2.{newest}" in PAGES["api/index.md"]
    assert f"Python ({pythons[0]} or newer)" in (ROOT / "README.md").read_text()


def test_addresses_are_the_same_everywhere() -> None:
    """A release fills them in pyproject.toml; the site reads them there."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    citation = (ROOT / "CITATION.cff").read_text()
    for address in (f'repository-code: "{urls["Repository"]}"', f'url: "{urls["Documentation"]}"', urls["Paper"]):
        assert address in citation


def test_files_and_cards_are_described() -> None:
    page = PAGES["files.md"]
    made = [each for each in vars(Run).values() if hasattr(each, "parts")]
    assert all(f"`{Path(*each.parts)}" in page for each in made), made
    tree = ast.parse(inspect.getsource(card_of))
    (returned,) = (node.value for node in ast.walk(tree) if isinstance(node, ast.Return))
    assert isinstance(returned, ast.Dict)
    keys = {key.value for key in returned.keys if isinstance(key, ast.Constant)}
    assert {*ABOUT, *keys} <= set(re.findall(r"`(\w+)`", page))


def test_messages_name_no_file_that_a_wheel_lacks() -> None:
    for path in (ROOT / "graddiv").rglob("*.py"):
        tree = ast.parse(path.read_text())
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert not [node.value for node in strings if id(node) not in statements and "docs/" in node.value], path
