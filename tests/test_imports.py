"""Imports go down only, heavy ones are lazy (the layers are drawn in CONTRIBUTING.md)."""

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "graddiv"

LAYERS = [  # from the ground up; a module may import its own part of the package and lower layers
    {"errors", "seeding", "geometry", "losses", "performance", "distributed"}
    | {"store", "records", "projections", "published"},
    {"networks"},
    {"directions"},
    {"data", "attacks"},
    {"experiment"},
    {"recipes"},
    {"training", "evaluation", "report"},
    {"paper", "audit", "tuning"},
    {"reproduce"},
    {"cli"},
    {"__main__"},
]
SIGNIFICANCE = {part: level for level, parts in enumerate(LAYERS) for part in parts}
APART = {("training", "evaluation"), ("report", "networks"), ("report", "attacks"), ("report", "training")}


def imports(path: Path) -> set[str]:
    """Names of the parts of graddiv that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name and name.split(".")[0] == "graddiv" and "." in name:
                found.add(name.split(".")[1])
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for imported in imports(path) - {part}:
        allowed = SIGNIFICANCE[imported] < SIGNIFICANCE[part] or SIGNIFICANCE[imported] == SIGNIFICANCE[part] == 0
        assert allowed, f"{part} may not import {imported}"
        assert (part, imported) not in APART, f"{part} may not import {imported}"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_command_line_does_not_import_torch() -> None:
    assert run("import sys, graddiv.cli; print('torch' in sys.modules)") == "False"


def test_the_core_pulls_in_nothing_heavy() -> None:
    heavy = "{'scipy', 'matplotlib', 'pydantic', 'typer', 'optuna', 'pandas', 'sklearn', 'torchvision'}"
    assert run(f"import sys; from graddiv import bayesian, randomize; print({heavy} & set(sys.modules))") == "set()"


def test_help_answers_at_once() -> None:
    def seconds() -> float:
        """Of processor time, so that a busy machine does not count."""
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "graddiv", "--help"], capture_output=True, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


def test_every_public_name_can_be_imported() -> None:
    import graddiv

    assert all(getattr(graddiv, name) is not None for name in graddiv.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = graddiv.nonsense
