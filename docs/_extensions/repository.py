"""Links to files of the repository outside docs/, which GitHub follows, lead to copies of them inside the site."""

import html
import inspect
import os
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
COPIED = (".html", ".png", ".svg", ".pdf")
"""Files that a browser shows by itself."""
PAGES = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}
"""Files that are pages of the site."""
PAGE = re.compile(r"docs/([\w/-]+)\.md")


def place(path: Path) -> str:
    """Where the site has a file or directory of the repository, from its root."""
    relative = path.relative_to(ROOT).as_posix()
    if relative in PAGES:
        return f"{PAGES[relative]}.html"
    return f"source/{relative}" if path.suffix in COPIED else f"source/{relative}.html"


def link(app: Sphinx, docname: str, target: str) -> str | None:
    """The address of `target`, a path relative to a page, or None if it is no file outside docs/."""
    path = Path(os.path.normpath((DOCS / docname).parent / target.partition("#")[0]))
    if not path.exists() or not path.is_relative_to(ROOT) or path.is_relative_to(DOCS):
        return None
    wanted(app.env).add(path)
    return os.path.relpath(place(path), Path(docname).parent)


def wanted(env: BuildEnvironment) -> set[Path]:
    """The files that pages link to."""
    if not hasattr(env, "repository_files"):
        env.repository_files = set()
    files: set[Path] = env.repository_files
    return files


def resolve(app: Sphinx, doctree: nodes.document) -> None:
    """MyST takes a link to a file for a download, and one to a directory for a reference to a page."""
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        known = node.tagname == "download_reference" or node.get("reftype") == "myst"
        if known and (uri := link(app, app.env.docname, node["reftarget"])):
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """The line of the source at which an object is defined; all pages of the reference lie in one directory."""
    found: Any = import_module(info["module"])
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    found = inspect.unwrap(getattr(found, "fget", None) or getattr(found, "func", None) or found)
    try:
        path, line = Path(inspect.getsourcefile(found) or ""), inspect.getsourcelines(found)[1]
    except (TypeError, OSError):
        return None
    if not path.is_relative_to(ROOT / "graddiv"):
        return None
    _linked.add(path)
    return f"../{place(path)}#L-{max(line, 1)}"


_linked: set[Path] = set()
"""What linkcode, which is given no environment, links to."""


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    """Files that pages read by another process link to."""
    wanted(env).update(wanted(other))


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that is linked to, its mentions of docs/NAME.md links; other kinds are copied."""
    sources = {path for path in (ROOT / "graddiv").rglob("*.py") if "docs/" in path.read_text(encoding="utf-8")}
    for path in sorted({*wanted(app.env), *_linked, *sources}):
        target = place(path)
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in COPIED:
            copy = Path(app.outdir, target)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        elif target.startswith("source/"):
            body = listing(path) if path.is_dir() else highlighted(path, target, app.env.all_docs)
            context = {"title": name, "body": f"<h1><code>{html.escape(name)}</code></h1>{body}", "parents": []}
            yield target.removesuffix(".html"), context, "page.html"


def listing(path: Path) -> str:
    """The names in a directory."""
    names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in path.iterdir() if not p.name.startswith((".", "__")))
    return "<ul>" + "".join(f"<li><code>{html.escape(name)}</code></li>" for name in names) + "</ul>"


def highlighted(path: Path, target: str, documents: Any) -> str:
    """The text of a file, in colours."""
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    code = highlight(path.read_text(encoding="utf-8"), lexer, HtmlFormatter(lineanchors="L", cssclass="highlight"))

    def linked(match: re.Match[str]) -> str:
        if match[1] not in documents:
            return match[0]
        return f'<a href="{os.path.relpath(match[1], Path(target).parent)}.html">{match[0]}</a>'

    return PAGE.sub(linked, code)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", resolve, priority=100)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
