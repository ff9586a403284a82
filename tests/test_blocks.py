"""Every fenced block of README and the documentation is run or checked by something; a new one that is not fails here.

Python blocks: `test_readme.py` and `test_docs.py` run them.  Cells: `make docs` runs them, on pages that are notebooks.
Shell blocks: each command is one of those that `COMMANDS` checks, and `test_docs.py` and `test_readme.py` parse or run
those of graddiv.  What is neither code nor command is marked as text.
"""

import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.markdown import PAGES as DOCUMENTS
from tests.markdown import (
    README,
    ROOT,
    SHELL,
    all_commands,
    blocks,
    commands,
    fenced,
    indented_code,
    python_blocks,
    shell_commands,
)

PAGES = {
    "README.md": README,
    **{f"docs/{name}": text for name, text in DOCUMENTS.items()},
    **{name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "CHANGELOG.md")},
}
DIRECTIVES = {"{command-line}", "{eval-rst}", "{gallery}", "{include}", "{public-names}", "{recipe-keys}", "{toctree}"}
"""Blocks that Sphinx itself takes, and warns of, which is an error."""


def understood_by_make(words: list[str]) -> bool:
    targets = [word for word in words if "=" not in word]
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, check=False)
    return bool(targets) and done.returncode == 0


def known_to_python(words: list[str]) -> bool:
    if words[0] == "-m":
        return importlib.util.find_spec(words[1]) is not None
    return (ROOT / words[0]).exists()


def installable(words: list[str]) -> bool:
    """Extras are those of pyproject.toml, files are there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for word in words for group in re.findall(r"\[(.*?)\]", word) for extra in group.split(",")}
    files = [after for word, after in pairwise(words) if word in ("-c", "-r")]
    return words[0] == "install" and named <= extras.keys() and all((ROOT / file).exists() for file in files)


def parsed_elsewhere(words: list[str]) -> bool:
    """By `test_commands` of README, and `test_commands_are_understood` of docs."""
    return bool(words)


COMMANDS: dict[str, Callable[[list[str]], bool]] = {
    "graddiv": parsed_elsewhere,
    "torchrun": lambda words: "-m graddiv" in " ".join(words),
    "make": understood_by_make,
    "python": known_to_python,
    "pip": installable,
}
"""By program what its arguments have to satisfy."""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_executed_or_checked(page: str) -> None:
    assert indented_code(PAGES[page]) == [], "put code into a fence that names its language"
    for language, body in fenced(PAGES[page]):
        if language == "python":
            run = blocks(README, "python") if page == "README.md" else python_blocks(page.removeprefix("docs/"))
            assert body in run, f"nothing runs this block:\n{body}"
        elif language == "{code-cell}":
            assert PAGES[page].startswith("---\nfile_format: mystnb\n"), f"the page is no notebook:\n{body}"
        else:
            assert language in {*SHELL, *DIRECTIVES, "text"}, f"a block of language {language!r}:\n{body}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_checked(page: str) -> None:
    for command in shell_commands(PAGES[page]):
        program, *words = shlex.split(command)
        assert program in COMMANDS, f"nothing checks {command!r}"
        assert COMMANDS[program](words), f"{command!r} would fail"
        if program == "graddiv":
            known = list(commands(README, "graddiv")) if page == "README.md" else [c for _, c in all_commands()]
            assert command in known


def test_what_would_slip_through_is_noticed() -> None:
    text = "- a list\n\n    more of it\n\nProse:\n\n    x = 1\n\n  ~~~python\n  y = 2\n  ~~~\n\n```\nls\n```\n"
    assert indented_code(text) == ["    x = 1"]
    assert fenced(text) == [("python", "y = 2\n"), ("", "ls\n")]
    assert not understood_by_make(["nonsense"])
    assert not known_to_python(["-m", "graddiv_nonsense"])
    assert not installable(["install", ".[nonsense]"])
