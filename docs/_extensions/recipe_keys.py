"""The keys of recipes, made from the settings that read them: types, defaults and what the code says of each."""

import inspect
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, get_args

from docstrings import ARGUMENT, PAGE
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from graddiv.diversity import REGULARIZERS
from graddiv.experiment.settings import Experiment, _with_sections
from graddiv.networks import ARCHITECTURES, DEFENSES

logger = logging.getLogger(__name__)

LISTED: dict[str, Iterable[str]] = {"architecture": ARCHITECTURES, "regularizer": REGULARIZERS}
"""Keys that take a name of a registry."""


def sections() -> dict[str, tuple[str, str, dict[str, str]]]:
    """By its heading in a recipe: what a section is for, the name of its model, and what is said of its keys."""
    model = _with_sections(tuple(DEFENSES.items()))
    found = {"": ("Keys above all sections.", "", comments(Experiment))}
    for name, field in model.model_fields.items():
        section = next((t for t in (*get_args(field.annotation), field.annotation) if hasattr(t, "__name__")), None)
        if name in DEFENSES:
            defense = DEFENSES[name]
            said = first_line(defense.factory)
            rules: Any = defense.rules
            keys = arguments(defense.factory) | comments(rules) | arguments(rules)
            found[f"[{name}]"] = (said, name, keys)
        elif section is not None and inspect.isclass(section) and section.__module__.startswith("graddiv."):
            heading = "[[stages]]" if name == "stages" else f"[{name}]"
            found[heading] = (first_line(section), section.__name__, comments(section) | arguments(section))
    return found


def first_line(of: Any) -> str:
    """The first sentence about something."""
    return (inspect.getdoc(of) or "").partition("\n\n")[0].replace("\n", " ")


def comments(of: type) -> dict[str, str]:
    """What the source says of each key, behind `#:`."""
    found: dict[str, str] = {}
    for each in reversed(of.__mro__):
        if each.__module__.startswith("graddiv."):
            docs = ModuleAnalyzer.for_module(each.__module__).find_attr_docs()
            found |= {key: " ".join(lines).strip() for (owner, key), lines in docs.items() if owner == each.__name__}
    return found


def arguments(of: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(of) or "").splitlines():
        if match := ARGUMENT.fullmatch(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif names and line.startswith("    "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def described(heading: str, about: str, schema: dict[str, Any], said: dict[str, str]) -> str:
    """A section as Markdown."""
    lines = [f"## {heading or 'At the top'}".replace("[", "\\["), escaped(about)]
    rows = ["| key | value | default | what it is |", "|---|---|---|---|"]
    for key, value in schema["properties"].items():
        if "$ref" in json.dumps(value):
            continue  # a section of its own
        default = "required" if key in schema.get("required", ()) else f"`{json.dumps(value.get('default'))}`"
        default = "none" if default == "`null`" else default
        if key not in said:
            logger.warning("nothing is said of the recipe key %s %s: add a comment behind #: to it", heading, key)
        takes = names_of(LISTED[key]) if key in LISTED else kind(value)
        rows.append(f"| `{key}` | {takes} | {default} | {escaped(said.get(key, ''))} |")
    return "\n\n".join([*lines, "\n".join(rows)])


def names_of(names: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)


def kind(value: dict[str, Any]) -> str:
    """What a key takes, in words."""
    if "anyOf" in value:
        kinds = [kind(each) for each in value["anyOf"] if each.get("type") != "null"]
        return "number" + bounds(value) if set(kinds) == {"whole number", "number"} else " or ".join(kinds)
    if "enum" in value:
        return names_of(value["enum"])
    if value.get("type") == "array":
        return "list of " + kind(value["items"])
    names = {"integer": "whole number", "boolean": "true or false", "string": "text"}
    return names.get(value.get("type", ""), value.get("type", "any")) + bounds(value)


def bounds(value: dict[str, Any]) -> str:
    """The limits of a number that say something."""
    signs = {"minimum": "≥", "ge": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    shown = [f"{sign} {value[key]:g}" for key, sign in signs.items() if key in value and abs(value[key]) < 1e9]
    return " " + ", ".join(shown) if shown else ""


def escaped(text: str) -> str:
    """Plain text as Markdown; `code` stays what it is, and docs/NAME.md becomes a link."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"'(graddiv [^']+)'", r"`\1`", text))
    plain = "".join(part if i % 2 else re.sub(r"([|*_<>\[\]])", r"\\\1", part) for i, part in enumerate(parts))
    return PAGE.sub(r"[\1](\1.md)", plain)


class RecipeKeys(SphinxDirective):
    """All sections."""

    def run(self) -> list[nodes.Node]:
        schema = _with_sections(tuple(DEFENSES.items())).model_json_schema(by_alias=True)
        parts = [
            described(heading, about, schema["$defs"][name] if name else schema, said)
            for heading, (about, name, said) in sections().items()
        ]
        return self.parse_text_to_nodes("\n\n".join(parts), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("recipe-keys", RecipeKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
