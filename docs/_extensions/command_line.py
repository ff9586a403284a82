"""The reference of the command line, made from the commands themselves: it says what --help says."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from graddiv.cli import app as graddiv


def described(name: str, command: Any) -> Iterator[str]:
    """A command as Markdown: what it does, how it is called, its arguments and options."""
    context = command.make_context(name, [], resilient_parsing=True)
    paragraphs = (command.help or "").split("\n\n")
    examples = [paragraph for paragraph in paragraphs if paragraph.startswith("graddiv ")]
    usage = " ".join(word for part in command.collect_usage_pieces(context) for word in part.split())
    yield f"## graddiv {name}"
    yield plain(paragraphs[0])
    yield f"```text\ngraddiv {name} {usage}\n```"
    yield from (plain(paragraph) for paragraph in paragraphs[1:] if paragraph not in examples)
    if examples:
        yield "\n".join(["For example:", "", "```sh", *examples, "```"])
    groups: dict[str, list[str]] = {}
    for parameter in command.params:
        if (record := parameter.get_help_record(context)) is not None:
            group = parameter.rich_help_panel or parameter.param_type_name
            groups.setdefault(group, []).append(f"| `{record[0]}` | {plain(record[1])} |")
    for group, rows in groups.items():
        yield "\n".join([f"| {group} | what it does |", "|---|---|", *rows])


def plain(text: str) -> str:
    """Text of a terminal as Markdown; 'quoted commands' become code."""
    return re.sub(r"'(graddiv [^']+)'", r"`\1`", re.sub(r"([|*_<>\[\]])", r"\\\1", text))


class CommandLine(SphinxDirective):
    """All commands."""

    def run(self) -> list[nodes.Node]:
        program: Any = get_command(graddiv)
        parts = [part for name, command in program.commands.items() for part in described(name, command)]
        return self.parse_text_to_nodes("\n\n".join(parts), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
