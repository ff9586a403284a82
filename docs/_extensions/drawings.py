"""Drawings are put into the page itself, so that they follow its light and dark theme; elsewhere they are pictures."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def inline(app: Sphinx, doctree: nodes.document) -> None:
    """Replace a picture from drawings/ by the drawing."""
    for image in list(doctree.findall(nodes.image)):
        if "drawings/" in image["uri"]:
            folder = Path(app.env.doc2path(app.env.docname)).parent
            svg = (folder / image["uri"]).read_text(encoding="utf-8")
            label = f'<svg role="img" aria-label="{image["alt"]}"'
            image.replace_self(
                nodes.raw("", f'<div class="drawing">{svg.replace("<svg", label, 1)}</div>', format="html")
            )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", inline, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
