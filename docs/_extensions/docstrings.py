"""Docstrings are written for people who read the source: plain text, `names` in backticks, "argument: what it is".

Here they become reStructuredText, and the table of public names is made of them.
"""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

REFERENCE = Path(__file__).parent.parent / "api"
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md")))
MODULES = re.findall(r"automodule:: (\S+)", PAGES)
"""Those that the reference describes."""

ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (.*)")
KEPT = re.compile(r"(`[^`]+`|(?<![\w*])\*\w[^*`]*\w\*(?![\w*]))")
PAGE = re.compile(r"\bdocs/([\w/-]+)\.md\b")


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText."""
    made: list[str] = []
    code = arguments = False
    for line in lines:
        arguments = arguments or not made or not made[-1]  # they begin a paragraph, and follow each other
        argument = ARGUMENT.fullmatch(line) if arguments else None
        if line.startswith("    ") and (code or not made or not made[-1]):
            if not code:
                made += ["::", ""]
            made.append(line)
            code = True
        elif not line:
            made.append("")
        else:
            code = False
            if argument:
                made += ["", f"- **{argument[1]}**: {escaped(argument[2])}"]
            else:
                arguments = arguments and line.startswith(" ")
                indent = "  " if line.startswith(" ") else ""
                made.append(indent + escaped(line.strip()))
    return made


def escaped(text: str) -> str:
    """Formulas keep their stars, bars and underscores; `code` and *emphasis* stay what they are."""
    parts = KEPT.split(text)
    return "".join(kept(p) if i % 2 else linked(re.sub(r"([\\*|_])", r"\\\1", p)) for i, p in enumerate(parts))


def kept(part: str) -> str:
    """`code` has two backticks in reStructuredText."""
    return f"`{part}`" if part.startswith("`") else part


def linked(text: str) -> str:
    """docs/NAME.md -> a link."""
    return PAGE.sub(r":doc:`docs/\1.md </\1>`", text)


def process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What autodoc found, rewritten in place."""
    lines[:] = restructured(lines)


def described(name: str) -> str:
    """What describes a public name of graddiv: an entry of its own, or that of the module that offers it."""
    import graddiv

    found = getattr(graddiv, name)
    if isinstance(found, ModuleType) or f":: graddiv.{name}\n" in PAGES:
        return f"graddiv.{name}"
    for module in map(import_module, MODULES):
        if name in getattr(module, "__all__", ()) or found.__module__ == module.__name__:
            return f"{module.__name__}.{name}"
    raise LookupError(f"no page of docs/api describes a module that offers graddiv.{name}")


class PublicNames(SphinxDirective):
    """Public names, those in its content, with their first lines, each a link to its description."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        import graddiv

        lines = ["| name | what it is |", "|---|---|"]
        for name in " ".join(self.content).split():
            first = (getattr(graddiv, name).__doc__ or "").strip().splitlines()[0]
            cell = re.sub(r"([|_])", r"\\\1", first)
            lines.append(f"| {{py:obj}}`{name} <{described(name)}>` | {cell} |")
        return self.parse_text_to_nodes("\n".join(lines))


def resolve_by_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """A type is named where it is defined, and described where it is exported: find it by its last name."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rsplit(".", 1)[-1]
    domain = env.domains.python_domain
    found = [name for name in domain.objects if name.rsplit(".", 1)[-1] == last and name.startswith("graddiv.")]
    if not last[:1].isupper() or not found:
        return None
    name = min(found, key=len)
    docname, anchor = domain.objects[name].docname, domain.objects[name].node_id
    return make_refnode(app.builder, node["refdoc"], docname, anchor, contnode, name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("missing-reference", resolve_by_name)
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
