"""The tables and figures of `graddiv reproduce` that are stored, and the commands of the others, from the registry."""

import os
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from stored import DOCS, RESULTS, Shown, shown

from graddiv.experiment import TWO_CORES, duration
from graddiv.paper.entries import DEMO, ENTRIES, STUDY, ZOO, Entry
from graddiv.paper.planning import seconds_to_train
from graddiv.recipes import SCALES

SECTIONS = {
    "The demo": DEMO,
    "The paper, from its first figure to its last": tuple(ENTRIES.values()),
    "The paper's MNIST findings re-tested": STUDY,
    "The defenses of the literature": (ZOO,),
}
ABOUT = {
    "The demo": "`make demo` or `graddiv reproduce demo` attacks two networks that come with the package.",
    "The paper's MNIST findings re-tested": "[Findings](findings.md) explains them.",
    "The defenses of the literature": "[Other defenses](zoo.md) explains them.",
}


def training_time(entry: Entry, scale: str) -> str:
    """How long training its runs takes on two cores."""
    seconds = seconds_to_train([entry], scale, lambda experiment: TWO_CORES)
    return "" if seconds is None else f"{scale} {duration(seconds)}"


def command(entry: Entry) -> str:
    """The command that makes an entry."""
    target, scale = ("demo", "demo") if entry in DEMO else (entry.name, cheapest(entry))
    return f"graddiv reproduce {target} --scale {scale}"


def times(entry: Entry) -> str:
    """How long training takes at each scale, on two CPU cores."""
    if entry.shipped:
        return "none, its networks come with the package"
    return "; ".join(time for scale in SCALES if (time := training_time(entry, scale)))


def described(entry: Entry, found: list[Shown]) -> str:
    """What is stored of an entry, as Markdown."""
    lines = [f"### {entry.title}", f"```sh\n{command(entry)}\n```", f"Training on two CPU cores: {times(entry)}."]
    for each in found:
        lines += [picture(entry, each), f"*{origin(each)}*"]
    return "\n\n".join(lines)


def listed(entries: list[Entry]) -> str:
    """Entries of which nothing is stored, as a table."""
    rows = [f"| {entry.title} | `{command(entry)}` | {times(entry)} |" for entry in entries]
    return "\n".join(["| table or figure | command | training on two CPU cores |", "|---|---|---|", *rows])


def cheapest(entry: Entry) -> str:
    """The scale of the command: quick if there is one, as results at scale demo say little."""
    return "quick" if "quick" in entry.scales else entry.scales[-1]


def picture(entry: Entry, each: Shown) -> str:
    """A figure as an image, a table as itself."""
    if each.path.suffix == ".png":
        return f"![{entry.title}]({os.path.relpath(each.path, DOCS)})"
    table = re.sub(r"^\*\*(.*)\*\*$", r"\1:", each.path.read_text(encoding="utf-8"), flags=re.M)
    return f":::{{wide-table}}\n{table}\n:::"


def origin(each: Shown) -> str:
    """Whose records it shows."""
    source = each.source.relative_to(DOCS.parent).as_posix()
    how = "Drawn when this site was built, from what is stored in" if each.drawn else "Stored in"
    of = f"{len(each.methods)} defenses" if len(each.methods) > 4 else "; ".join(each.methods)
    return f"{how} [{source}](../{source}), at scale {each.scale}: {of}."


class Gallery(SphinxDirective):
    """All of them."""

    def run(self) -> list[nodes.Node]:
        for plan in RESULTS.glob("*/plan.json"):
            self.env.note_dependency(str(plan))
        parts: list[str] = []
        absent: list[Entry] = []
        for section, entries in SECTIONS.items():
            stored = [(entry, found) for entry in entries if (found := list(shown(entry)))]
            absent += [entry for entry in entries if entry not in [each for each, _ in stored]]
            if stored:
                parts += [f"## {section}", ABOUT.get(section, "")]
                parts += [described(entry, found) for entry, found in stored]
        if absent:
            parts += ["## Not stored", listed(absent)]
        return self.parse_text_to_nodes("\n\n".join(parts), allow_section_headings=True)


class WideTable(SphinxDirective):
    """A stored table, which may be wider than the page."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [nodes.container("", *self.parse_content_to_nodes(), classes=["wide-table"])]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("gallery", Gallery)
    app.add_directive("wide-table", WideTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
