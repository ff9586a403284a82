"""Code and commands of Markdown files, for the tests that run them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^([ ]*)(`{3,}|~{3,})[ ]*([^\n`]*)\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)

SHELL = ("sh", "bash", "console")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(p.relative_to(DOCS)): p.read_text() for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.parts}
README = (ROOT / "README.md").read_text()


class Block(NamedTuple):
    """A fenced block."""

    language: str
    """The first word behind the fence: python, sh, {code-cell}; "" if there is none."""
    body: str


def fenced(text: str) -> list[Block]:
    """Every fenced block, however deep it is indented."""
    return [
        Block((info.split() or [""])[0], re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))
        for indent, _, info, body in FENCE.findall(text)
    ]


def blocks(text: str, *languages: str) -> list[str]:
    """The bodies of the fenced blocks of these languages."""
    return [block.body for block in fenced(text) if block.language in languages]


def indented_code(text: str) -> list[str]:
    """Lines that Markdown takes for code because of four spaces, and that no fence names the language of."""
    found, in_list, before = [], False, ""
    for line in FENCE.sub("", text).splitlines():
        if line and not line.startswith(" "):
            in_list = re.match(r"([-*+]|\d+[.)]) ", line) is not None
        if line.startswith("    ") and not before.strip() and not in_list:
            found.append(line)
        before = line
    return found


def shell_commands(text: str) -> list[str]:
    """The commands of shell blocks: without prompt and comment, lines that go on joined."""
    lines = [line for block in blocks(text, *SHELL) for line in block.replace("\\\n", " ").splitlines()]
    without_comments = (re.sub(r"(^|\s)#.*", "", line).removeprefix("$ ").strip() for line in lines)
    return [command for command in without_comments if command]


def commands(text: str, program: str) -> Iterator[str]:
    """Every command of a shell block, and every `command` in the text, that calls the program."""
    prose = FENCE.sub("", text)
    for command in [*shell_commands(text), *re.findall(r"`([^`\n]+)`", prose)]:
        if command.startswith(f"{program} "):
            yield command


def python_blocks(page: str) -> list[str]:
    """The blocks of a page that are run."""
    return blocks(PAGES.get(page, ""), "python")


def all_commands() -> list[tuple[str, str]]:
    """(page, command) for every call of graddiv, also those under torchrun."""
    found = []
    for page, text in PAGES.items():
        joined = text.replace("\\\n", " ")
        under_torchrun = [f"graddiv {rest}" for rest in re.findall(r"-m graddiv -- +([^`\n]+)", joined)]
        found += [(page, command) for command in (*commands(joined, "graddiv"), *under_torchrun)]
    return list(dict.fromkeys(found))
