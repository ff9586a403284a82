"""Every table and figure that `graddiv reproduce` makes, from the registry, with the pictures that are stored."""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from graddiv.experiment import TWO_CORES, duration
from graddiv.paper.entries import DEMO, ENTRIES
from graddiv.paper.entry import Entry
from graddiv.paper.study import STUDY, ZOO
from graddiv.recipes import SCALES, title

STUDIED = Path(__file__).parents[2] / "results" / "mnist-study"
STUDY_OF = "study-seeds"
"""The entry that it is a run of."""

SECTIONS = {
    "The demo": DEMO,
    "The paper, from its first figure to its last": tuple(ENTRIES.values()),
    "The paper's MNIST findings re-tested": STUDY,
    "The defenses of the literature": (ZOO,),
}
ABOUT = {
    "The demo": "`make demo`, or `graddiv reproduce demo`: two networks that come with the package.",
    "The paper's MNIST findings re-tested": "What came out so far is in [findings.md](findings.md).",
    "The defenses of the literature": "They are described in [zoo.md](zoo.md).",
}


def stored() -> dict[str, str]:
    """What the plan of the stored study draws, by renderer: the name of its files."""
    plan = json.loads((STUDIED / "plan.json").read_text(encoding="utf-8"))
    return {item["renderer"]: item["name"] for item in plan["items"]}


def training_time(entry: Entry, scale: str) -> str:
    """How long training its runs takes on two cores."""
    if scale not in entry.scales:
        return ""
    work = {e.run_name: e.work for e in entry.experiments(scale, None, ())}
    return f"{scale} {duration(sum(work.values()) / TWO_CORES)}"


def described(entry: Entry, pictures: dict[str, str]) -> str:
    """An entry as Markdown."""
    target, scale = ("demo", "demo") if entry in DEMO else (entry.name, "quick")
    methods = ", ".join(title(method) for method in entry.methods)
    times = "none, its networks come with the package" if entry.shipped else "; ".join(
        time for s in SCALES if (time := training_time(entry, s)))  # fmt: skip
    lines = [
        f"### {entry.title}",
        f"```sh\ngraddiv reproduce {target} --scale {scale}\n```",
        f"Makes {', '.join(f'`{render.renderer}`' for render in entry.renders)} of {methods}. "
        f"Training on two CPU cores: {times}.",
    ]
    shows_it = entry.name == STUDY_OF or (entry.name in ENTRIES and entry.data == "mnist")
    found = [pictures[r.renderer] for r in entry.renders if r.renderer in pictures] if shows_it else []
    for name in found:
        if (STUDIED / f"{name}.png").exists():
            lines.append(f"![{entry.title}](../results/mnist-study/{name}.png)")
        else:
            table = re.sub(r"^\*\*(.*)\*\*$", r"\1:", (STUDIED / f"{name}.md").read_text(encoding="utf-8"), flags=re.M)
            lines.append(f":::{{wide-table}}\n{table}\n:::")
    if found:
        lines.append(
            "*From the stored study ([results/mnist-study](../results/mnist-study)), at scale quick and of Adv-BNN "
            f"without and with GradDiv only: `graddiv reproduce {STUDY_OF}`.*"
        )
    elif not entry.shipped:
        lines.append("*No run of it is stored.*")
    return "\n\n".join(lines)


class Gallery(SphinxDirective):
    """All of them."""

    def run(self) -> list[nodes.Node]:
        pictures = stored()
        self.env.note_dependency(str(STUDIED / "plan.json"))
        parts = []
        for section, entries in SECTIONS.items():
            parts += [f"## {section}", ABOUT.get(section, "")]
            parts += [described(entry, pictures) for entry in entries]
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
