"""The extras of the package: what some commands need beyond the core, and what to say where it is missing."""

from importlib.util import find_spec

from graddiv.errors import GradDivError

EXTRAS = {
    "cli": ("typer", "rich", "pydantic"),
    "report": ("matplotlib", "jinja2"),
    "tune": ("optuna",),
    "tensorboard": ("tensorboard",),
}
"""Packages by the extra of pyproject.toml that brings them; the others bring those of cli too."""


def require(extra: str) -> None:
    """Refuse to begin what would end in a missing package."""
    for name in dict.fromkeys(("cli", extra)):
        for package in EXTRAS[name]:
            if find_spec(package) is None:
                raise missing(package, extra)


def missing(package: str, extra: str) -> GradDivError:
    """Return the error for a package that is not installed."""
    return GradDivError(f"{package} is not installed: pip install 'graddiv[{extra}]'")


def explained(error: ModuleNotFoundError) -> GradDivError | None:
    """Return the error that says which extra has the package that was not found; None if none has."""
    package = (error.name or "").partition(".")[0]
    return next((missing(package, extra) for extra, packages in EXTRAS.items() if package in packages), None)
