"""What the tables of a recipe are made of: numbers with their ranges, and names that a registry lists."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _fraction(value: object) -> object:
    """8/255 as people write it."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError):
            return value
    return value


Real = Annotated[float, BeforeValidator(_fraction), Field(allow_inf_nan=False)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Share = Annotated[Real, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=0)]
Period = Annotated[int | float, BeforeValidator(_fraction), Field(ge=0, allow_inf_nan=False)]
"""A time in epochs, parts of epochs included."""
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
"""Part of the name of a directory."""


class Section(BaseModel):
    """One table of a recipe: frozen, and with no other keys than these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def listed_in(registry: Mapping[str, object]) -> AfterValidator:
    """For a string that must be one of the registry's names, those registered later included."""

    def check(name: str) -> str:
        if name not in registry:
            raise PydanticCustomError("unlisted", "unknown name", {"known": list(registry)})
        return name

    return AfterValidator(check)
