"""Documents of settings: JSON and TOML, as objects of names and values."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from graddiv.errors import GradDivError
from graddiv.store import files

LARGEST = 1 << 26
"""Bytes of the largest document that is read."""
DEEPEST = 40
"""Levels of tables and lists in one another: code that follows deeper ones would exhaust the stack."""


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    files.write(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file, which must hold an object."""
    return parse_json(files.read_text(path, LARGEST), str(path))


def parse_json(text: str, source: str) -> dict[str, Any]:
    """The object that a JSON text describes; `source` begins every complaint."""
    return _parsed(json.loads, text, source, "JSON")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    return parse_toml(files.read_text(path, LARGEST), str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The tables that a TOML text describes; `source` begins every complaint."""
    return _parsed(tomllib.loads, text, source, "TOML")


def _parsed(loads: Callable[[str], object], text: str, source: str, language: str) -> dict[str, Any]:
    try:
        value = loads(text)
    except RecursionError:
        raise GradDivError(f"cannot read {source}: it is nested deeper than {DEEPEST} levels") from None
    except (ValueError, OverflowError) as error:
        raise GradDivError(f"cannot read {source} as {language}: {str(error).splitlines()[0]}") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [part for whole in level for part in _parts(whole)]
    if level:
        raise GradDivError(f"cannot read {source}: it is nested deeper than {DEEPEST} levels")
    if not isinstance(value, dict):
        raise GradDivError(f"cannot read {source}: it holds {type(value).__name__} {value!r:.40}, expected an object")
    return value


def _parts(whole: object) -> list[Any]:
    return list(whole.values()) if isinstance(whole, dict) else whole if isinstance(whole, list) else []


def write_once_or_match(
    path: Path, expected: Mapping[str, object], normalise: Callable[[Any], Mapping[str, object]] = dict
) -> None:
    """Write `expected` as JSON if the file is new; otherwise refuse to go on unless it holds the same.

    `normalise` brings what an earlier version wrote into the form of `expected`.
    """
    if not path.exists():
        write_json(path, expected)
        return
    different = differences(normalise(read_json(path)), json.loads(json.dumps(expected)))
    if different:
        key, found, wanted = different[0]
        more = f" (and {len(different) - 1} more keys)" if len(different) > 1 else ""
        raise GradDivError(
            f"{path.parent} was made with {key} = {found!r}, now it is {wanted!r}{more}: "
            "choose another directory with --out, or the settings of that one"
        )


def differences(found: object, wanted: object, key: str = "") -> list[tuple[str, object, object]]:
    """Return (key, value found, value wanted) for every place at which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        mine, theirs = cast("dict[str, object]", found), cast("dict[str, object]", wanted)
        keys = [*mine, *(k for k in theirs if k not in mine)]
        return [
            difference
            for k in keys
            for difference in differences(mine.get(k), theirs.get(k), f"{key}.{k}" if key else k)
        ]
    return [] if found == wanted else [(key, found, wanted)]
