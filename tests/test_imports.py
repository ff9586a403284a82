"""Imports go down only and never in a circle, heavy ones are lazy, the package stays small: see CONTRIBUTING.md."""

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "graddiv"

LAYERS = [  # from the ground up; a part of the package may import itself and lower layers
    {"errors", "seeding", "geometry", "losses", "performance", "distributed", "store", "records", "references"}
    | {"registries", "progress", "moved"},  # these may import each other
    {"networks"},
    {"diversity"},
    {"data", "attacks"},
    {"objective"},
    {"experiment"},
    {"runs"},
    {"recipes"},
    {"report"},
    {"training", "evaluation"},
    {"paper", "tuning"},
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
APART = {("report", "networks"), ("report", "attacks"), ("report", "diversity")}
"""Imports that would go down and still are not wanted: a report reads records, never models."""
LONGEST = 400  # lines of a file; beyond that it should be split
LONGEST_FUNCTION = 60  # its lines without the docstring
MOST_LINES, MOST_MODULES = 21_000, 130  # of the package, comments and docstrings included

FILES = {
    ".".join(("graddiv", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""Every module of the package by its dotted name."""
MODULES = [name for name in FILES if name != "graddiv"]


def imports(source: str, *, types_too: bool) -> set[str]:
    """The modules of graddiv that this code imports; `types_too`: also those for type checkers alone or in strings."""
    found = set()
    for node in _nodes(ast.parse(source), types_too):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "graddiv"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            if (node.module or "").split(".")[0] == "graddiv":
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in FILES else str(node.module) for name in names - {"graddiv.__version__"}}
        elif types_too and isinstance(node, ast.Constant) and re.fullmatch(r"graddiv(\.\w+)+(:\w+)?", str(node.value)):
            found |= {str(node.value).partition(":")[0]} & FILES.keys()  # what a registry imports later
    return found


def _nodes(tree: ast.AST, types_too: bool) -> Iterator[ast.AST]:
    yield tree
    for node in ast.iter_child_nodes(tree):
        if types_too or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _nodes(node, types_too)


def misplaced(module: str, imported: set[str]) -> list[str]:
    """Those of the imported modules that this one may not know; the package itself knows everything."""
    part = module.split(".")[1]
    wrong = []
    for name in sorted(imported):
        other = name.split(".")[1] if "." in name else None
        if other == part:
            continue
        ground = other is not None and LEVEL[other] == LEVEL[part] == 0
        if other is None or not (LEVEL[other] < LEVEL[part] or ground) or (part, other) in APART:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", [name for name in MODULES if name != "graddiv.moved"])
def test_imports_go_down_only(module: str) -> None:
    assert misplaced(module, imports(FILES[module].read_text(), types_too=True)) == []


def test_imports_make_no_circle() -> None:
    graph = {name: imports(FILES[name].read_text(), types_too=False) - {name} for name in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_layers_are_the_parts_of_the_package() -> None:
    assert {name.split(".")[1] for name in MODULES} == set(LEVEL)


@pytest.mark.parametrize(
    "line",
    [
        "from graddiv import training",
        "import graddiv.training",
        "from graddiv.training import train",
        "def f():\n    from graddiv.training.loop import train",
        "if TYPE_CHECKING:\n    from graddiv import training",
        "LATER = {'train': 'graddiv.training.loop:train'}",
    ],
)
def test_an_import_that_goes_up_is_seen(line: str) -> None:
    found = imports(line, types_too=True)
    assert misplaced("graddiv.attacks.pgd", found) == sorted(found) != []
    assert misplaced("graddiv.cli.train", found) == []


def test_imports_sideways_apart_and_of_the_package_itself_are_seen() -> None:
    assert misplaced("graddiv.training.loop", {"graddiv.evaluation"}) == ["graddiv.evaluation"]
    assert misplaced("graddiv.report.page", {"graddiv.networks", "graddiv.runs"}) == ["graddiv.networks"]
    assert imports("from graddiv import GradDiv, __version__, store", types_too=True) == {"graddiv", "graddiv.store"}
    assert misplaced("graddiv.cli", {"graddiv", "graddiv.store"}) == ["graddiv"]
    assert imports("if TYPE_CHECKING:\n    from graddiv import store", types_too=False) == set()


def test_the_package_stays_small() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}
    assert sum(lines.values()) <= MOST_LINES
    assert len(lines) <= MOST_MODULES


@pytest.mark.parametrize("module", FILES)
def test_no_function_is_too_long(module: str) -> None:
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            docstring = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1 if documented else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - docstring
            assert length <= LONGEST_FUNCTION, (node.name, length)


def test_texts_are_read_and_written_as_utf_8() -> None:
    """Whatever the locale: a call that does not name the encoding would take that of the locale."""
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Call) else ""
            called = text.partition("(")[0].rpartition(".")[2]
            if called in ("read_text", "write_text"):
                assert "encoding=" in text or text.startswith(("store.", "read_text(")), (name, text)
            if called in ("open", "fdopen") and not text.startswith(
                ("os.open(", "tarfile.open(", "Session.open(", "Image.open(")
            ):
                assert "b'" in text, (name, text)  # bytes, not text


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_command_line_does_not_import_torch() -> None:
    assert run("import sys, graddiv.cli; print('torch' in sys.modules)") == "False"


def test_the_core_pulls_in_nothing_heavy() -> None:
    heavy = "{'scipy', 'matplotlib', 'pydantic', 'typer', 'optuna', 'pandas', 'sklearn', 'torchvision'}"
    assert run(f"import sys; from graddiv import bayesian, randomize; print({heavy} & set(sys.modules))") == "set()"


def test_the_core_needs_no_extra() -> None:
    """All public names, with the packages of the extras out of reach."""
    names = ["typer", "rich", "pydantic", "matplotlib", "jinja2", "optuna", "tensorboard"]
    hide = f"import sys; sys.modules |= dict.fromkeys({names})"
    assert run(f"{hide}; import graddiv; print(all(hasattr(graddiv, name) for name in graddiv.__all__))") == "True"


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
