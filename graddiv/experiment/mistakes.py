"""From the tables of a recipe to the experiment, or to all of their mistakes explained at once."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError

from graddiv.errors import GradDivError
from graddiv.experiment.schema import Experiment, experiment_model

LONGEST = 200
"""Signs of a wrong value that are shown."""


def parse(values: Mapping[str, Any], source: str) -> Experiment:
    """The experiment that these tables describe, or all of their mistakes at once."""
    model = experiment_model()
    try:
        return model.model_validate(values)
    except ValidationError as error:
        mistakes = [_explained(dict(e), model) for e in error.errors()]
        raise GradDivError("\n  ".join([f"{source} has {_counted(mistakes)}:", *mistakes])) from None


def _counted(mistakes: list[str]) -> str:
    return "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"


def _explained(error: dict[str, Any], model: type[Experiment]) -> str:
    """One mistake in tables that should make this model: where, what was found, what was expected."""
    where, found = ".".join(map(str, error["loc"])), _shown(error["input"])
    match error["type"]:
        case "extra_forbidden":
            fields = _table(model, error["loc"][:-1]).model_fields
            known = [field.alias or name for name, field in fields.items()]
            return f"{where}: there is no such key, {_nearest(str(error['loc'][-1]), known)}"
        case "missing":
            return f"{where}: is missing"
        case "literal_error":
            field = _table(model, error["loc"][:-1]).model_fields[str(error["loc"][-1])]
            return f"{where} is {found}, {_nearest(str(error['input']), get_args(field.annotation))}"
        case "unlisted":
            return f"{where} is {found}, {_nearest(str(error['input']), error['ctx']['known'])}"
        case "value_error":
            return str(error["ctx"]["error"])
        case _:
            return f"{where} is {found}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _shown(value: object) -> str:
    """A value as the user wrote it, or its beginning."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {nearest[0]!r}? " if nearest else "") + f"expected one of {', '.join(known)}"


def _table(model: Any, location: Iterable[str | int]) -> type[BaseModel]:
    """The model of the table at this location in the model of all tables."""
    for key in (part for part in location if not isinstance(part, int)):  # the position in a list of tables
        annotation = next(f.annotation for name, f in model.model_fields.items() if key in (name, f.alias))
        model = next(iter(get_args(annotation)), annotation)  # "Section | None", "tuple[Section, ...]" or "Section"
    return cast("type[BaseModel]", model)
