"""The one exception a user's mistake raises, the one warning, and what to say of an extra that is missing."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

#: Packages by the extra of pyproject.toml that brings them; the others bring those of cli too.
EXTRAS = {
    "cli": ("typer", "rich", "pydantic"),
    "report": ("matplotlib", "jinja2"),
    "tune": ("optuna",),
    "tensorboard": ("tensorboard",),
}


class GradDivError(ValueError):
    """A mistake in the input, in one sentence; the command line prints it without a traceback and exits with 2."""


class GradDivWarning(UserWarning):
    """Something the user should know about a result that is computed nevertheless."""


def unknown(kind: str, name: str, known: Iterable[str]) -> GradDivError:
    """Return the error for a name that is not one of `known`, with the nearest that is."""
    return GradDivError(f"unknown {kind} {name!r}, {expected(name, known)}")


def expected(name: str, known: Iterable[str]) -> str:
    """List the names expected instead of `name`, and suggest the nearest."""
    folded = {candidate.lower(): candidate for candidate in known}
    nearest = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    suggestion = f"did you mean {folded[nearest[0]]!r}? " if nearest else ""
    return f"{suggestion}expected one of {', '.join(folded.values())}"


def require(extra: str) -> None:
    """Raise an error if a package of the extra is missing, before any work begins."""
    for package in (*EXTRAS["cli"], *EXTRAS[extra]):
        if find_spec(package) is None:
            raise GradDivError(f"{package} is not installed: pip install 'graddiv[{extra}]'")


def explained(error: ModuleNotFoundError) -> GradDivError | None:
    """Return the error that names the extra with the missing package; None if no extra has it."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return GradDivError(f"{package} is not installed: pip install 'graddiv[{extra}]'") if extra else None
