"""Options that several commands share, and how a function becomes a command."""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from graddiv.errors import GradDivError
from graddiv.progress import leads
from graddiv.references import name_of

if TYPE_CHECKING:
    from graddiv.data import Dataset
    from graddiv.distributed import Process
    from graddiv.evaluation import Target
    from graddiv.evaluation.examples import Bounds, Examples
    from graddiv.evaluation.models import Model
    from graddiv.evaluation.run import Session
    from graddiv.experiment import Experiment
    from graddiv.geometry import Geometry
    from graddiv.runs import Run


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
    """Options for the radius, the examples and the seed with which a network is evaluated."""

    data: str = ""
    bounds: str = ""
    split: str = ""
    examples: int | None = None
    epsilon: str = ""
    norm: str = "linf"
    batch: int = 100
    seed: int = 0
    name: str = ""
    out: Path | None = None

    @property
    def geometry(self) -> "Geometry":
        from graddiv.geometry import NORMS

        return NORMS[self.norm]

    def model(self, reference: str) -> "tuple[Model, Run | None]":
        """What a reference names, and the run if it is one."""
        from graddiv.evaluation.models import load_model
        from graddiv.runs import Run

        found = load_model(reference)
        return found, Run(found) if isinstance(found, Path) else None

    def examples_for(self, model: "Model", run: "Run | None", machine: Machine) -> "Examples | Dataset":
        """The examples that are named, or those of the run's own split."""
        from graddiv.data import SOURCES, load
        from graddiv.evaluation.examples import examples_of
        from graddiv.evaluation.models import dtype_of

        root = machine.data_root
        if run is None and not self.data:
            kinds = "an .npz file with the arrays x and y, a folder of images by class, file.py:name, or mnist-mini"
            raise GradDivError(f"--data is missing, expected {kinds}")
        if run is not None and self._is_own(run):
            return load(run.experiment.data.source, self.split or "test", root)
        if run is not None and self.data in SOURCES and not self.bounds:
            return load(self.data, self.split or "test", root)
        kind = None if run is not None else dtype_of(model)
        return examples_of(self.data, None, _bounds(self.bounds), self.examples, kind, split=self.split, data_root=root)

    def _is_own(self, run: "Run") -> bool:
        """Whether the run is judged on its own data, of which other splits were trained on."""
        from graddiv.data.own import is_own, read_own

        own = run.experiment.data
        if not self.data or own.file is None:
            return self.data in ("", own.name)
        return is_own(self.data) and read_own(self.data, "train").sha256 == own.file.sha256

    def radii(self, run: "Run | None", pixels: int) -> list[float]:
        """The radii that are named, or the usual one, with a line that says where it comes from."""
        from graddiv.evaluation.in_memory import check_radius
        from graddiv.evaluation.measurements import l2_radius
        from graddiv.recipes import USUAL, usual_radius

        radii = numbers(self.epsilon)
        if not radii:
            usual, why = usual_radius(run.experiment) if run else (USUAL, "8/255, which is usual for images")
            radii = [usual if self.norm == "linf" else l2_radius(usual, pixels)]
            why += "" if self.norm == "linf" else f" ({usual:.4g} in Linf, here as an l2 ball about as easy)"
            if leads():
                typer.echo(f"epsilon {radii[0]:.4g}: {why}; --epsilon chooses another", err=True)
        for each in radii:
            check_radius(each, self.geometry, pixels)
        return radii

    @contextmanager
    def of(
        self, reference: str, process: "Process", machine: Machine, *, several: bool = False, folder: str = "records"
    ) -> "Iterator[tuple[Target, list[float], Session]]":
        """Yield a network with its examples, the radii of attacks, and the session that writes its records."""
        from graddiv.evaluation import Target, target_of
        from graddiv.evaluation.examples import Examples
        from graddiv.evaluation.run import Session

        model, run = self.model(reference)
        data, name = self.examples_for(model, run, machine), self.name or name_of(reference)
        judged: dict[str, Any] = {"batch": self.batch, "seed": self.seed, "device": process.device}
        if run is not None:
            own, F = self._is_own(run), run.network(machine.data_root)
            limit = None if isinstance(data, Examples) else self.examples
            target = target_of(run.experiment, F, data=data, split=data.split, examples=limit, **judged)
            target = replace(target, name=self.name) if self.name else target
            usual = run.path / (folder if own else f"{folder}-{name_of(self.data)}")
        else:
            target = Target.of(model, data, name=name, **judged)
            usual = Path(folder) / name
        radii = self.radii(run, target.pixels)
        directory = usual if self.out is None else self.out / name if several else self.out
        with Session.open(directory, process, progress=True) as session:
            if run is None and process.writes:  # a run's records lie beside it
                target.check_answers(directory / target.answers_file)
            yield target, radii, session


def _bounds(text: str) -> "Bounds | None":
    """Parse 0,255, or 0:0:0,1:1:1 for several channels."""
    parts = [numbers(part.replace(":", ",")) for part in words(text)]
    if not parts:
        return None
    if len(parts) != 2:
        raise GradDivError(f"--bounds is {text!r}, expected two numbers such as 0,255")
    low, high = (part[0] if len(part) == 1 else part for part in parts)
    return low, high


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
