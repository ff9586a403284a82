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


def _number(value: object) -> object:
    """Refuse true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("boolean", "Input should be a number")
    return value


MOST = 10**9
"""No count is larger: with more, not even the time that training takes could be computed."""

Whole = Annotated[int, BeforeValidator(_number), Field(ge=-(2**63), lt=2**63)]
Real = Annotated[float, BeforeValidator(_fraction), BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Share = Annotated[Real, Field(ge=0, le=1)]
Width = Annotated[Real, Field(ge=1e-3, le=64)]
"""Of a network, where that of the paper's is 1."""
Count = Annotated[Whole, Field(ge=1, le=MOST)]
Epochs = Annotated[Whole, Field(ge=0, le=MOST)]
Period = Annotated[
    int | float,
    BeforeValidator(_fraction),
    BeforeValidator(_number),
    Field(ge=0, le=MOST, allow_inf_nan=False),
]
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
