"""Options that several commands share, and how a function becomes a command."""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from graddiv.errors import GradDivError
from graddiv.progress import leads

if TYPE_CHECKING:
    from graddiv.distributed import Process
    from graddiv.evaluation import Target
    from graddiv.evaluation.run import Session
    from graddiv.experiment import Experiment
    from graddiv.geometry import Geometry


def suggest(what: str) -> None:
    """Print the last line of a command: what to do next."""
    if leads():
        typer.echo(f"next: {what}", err=True)


def words(text: str) -> list[str]:
    """The comma-separated parts of an option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def number(text: str) -> float:
    """Parse 0.3 or 8/255."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise GradDivError(f"{text!r} is no number, expected one such as 0.3 or 8/255") from None


def numbers(text: str) -> list[float]:
    """Parse comma-separated numbers."""
    return [number(word) for word in words(text)]


def whole_numbers(text: str) -> list[int]:
    """Parse comma-separated seeds or counts."""
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise GradDivError(f"{text!r} is no whole number, expected one such as 3, or several such as 1,5,10") from None


@dataclass(frozen=True)
class Machine:
    """Options for the folder of the data and the device."""

    data_root: Path | None = None
    device: str | None = None

    @contextmanager
    def process(self) -> "Iterator[Process]":
        """Join the processes that torchrun started, and let malloc keep freed memory."""
        from graddiv.distributed import join_processes
        from graddiv.performance import keep_memory

        keep_memory()
        with join_processes(self.device) as process:
            yield process


@dataclass(frozen=True)
class Training:
    """The options of a training."""

    scale: str = "demo"
    overrides: list[str] = field(default_factory=list)
    seed: int | None = None

    def experiment(self, name: str, start: Path | None = None) -> "Experiment":
        """Return the settings of a recipe with these options; training starts from the network at `start`, if given."""
        from graddiv.recipes import recipe

        seed = [f"seed={self.seed}"] if self.seed is not None else []
        return recipe(name, self.scale, [*self.overrides, *seed], start)


@dataclass(frozen=True)
class Evaluation:
    """Options for the radius, the examples and the seed with which a trained run is evaluated."""

    epsilon: str = ""
    norm: str = "linf"
    examples: int | None = None
    split: str = "test"
    batch: int = 100
    seed: int = 0
    out: Path | None = None

    @property
    def geometry(self) -> "Geometry":
        from graddiv.geometry import NORMS

        return NORMS[self.norm]

    @contextmanager
    def of(
        self, run: Path, process: "Process", machine: Machine, name: str = ""
    ) -> "Iterator[tuple[Target, list[float], Session]]":
        """Yield a trained run with its examples, the radii of attacks, and the session that writes its records."""
        from graddiv.evaluation import target_of
        from graddiv.evaluation.in_memory import check_radius
        from graddiv.evaluation.measurements import l2_radius
        from graddiv.evaluation.run import Session
        from graddiv.recipes import radius
        from graddiv.runs import Run

        experiment, F = Run(run).experiment, Run(run).network(machine.data_root)
        where = {"data_root": machine.data_root, "device": process.device}
        judged_on = {"split": self.split, "examples": self.examples, "batch": self.batch, "seed": self.seed}
        target = target_of(experiment, F, **judged_on, **where)  # type: ignore[arg-type]
        usual = 0.0 if self.epsilon else radius(experiment)
        radii = numbers(self.epsilon) or [usual if self.norm == "linf" else l2_radius(usual, target.pixels)]
        for each in radii:
            check_radius(each, self.geometry, target.pixels)
        directory = self.out / name if self.out else Run(run).records
        with Session.open(directory, process, progress=True) as session:
            yield target, radii, session


COMPLETED = {"recipe": "recipes.names", "scale": "recipes.SCALES", "target": "paper.entries.targets"}
"""Parameters that the shell completes, and where their names are, which is imported on demand."""

HELP = tomllib.loads(Path(__file__).with_name("help.toml").read_text(encoding="utf-8"))
"""The help of each parameter, by function or dataclass, and other names of options."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a typer command of a function; help.toml has the help of its options.

    Parameters before the `/` are arguments.  A parameter that is a dataclass becomes an option for each field.
    """
    parameters, hints = inspect.signature(function).parameters, get_type_hints(function)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    arguments = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]
    shown: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name not in groups:
            shown.append(_declared(function, name, parameter.default, is_argument=name in arguments))
            continue
        for each in fields(groups[name]):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            shown.append(_declared(groups[name], each.name, default))

    @wraps(function)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        given = [values.pop(name) for name in arguments]
        function(*given, **values)

    # typer breaks a paragraph where the docstring does
    call.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(function) or "")
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call


def _declared(owner: Any, name: str, default: Any, *, is_argument: bool = False) -> inspect.Parameter:
    """Declare a parameter of a function, or a field of a dataclass, as an argument or option of typer."""
    metavar = HELP["metavars"].get(name, name.upper() if is_argument else None)
    shown: dict[str, Any] = {"help": HELP[owner.__name__.lower()][name], "metavar": metavar}
    if name in COMPLETED:
        shown["autocompletion"] = lambda incomplete: _beginning(incomplete, COMPLETED[name])
    flags = HELP["names"].get(name, [f"--{name.replace('_', '-')}"])
    declared = typer.Argument(**shown) if is_argument else typer.Option(*flags, **shown)
    annotation = Annotated[get_type_hints(owner)[name], declared]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _beginning(word: str, path: str) -> list[str]:
    """Return the names that begin with `word`, from the list at `path` or from what the function there returns."""
    module, _, name = path.rpartition(".")
    found = getattr(import_module(f"graddiv.{module}"), name)
    return [each for each in (found() if callable(found) else found) if each.startswith(word)]
