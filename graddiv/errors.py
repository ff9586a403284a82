"""The one exception a user's mistake raises, and the one warning."""

from collections.abc import Iterable
from difflib import get_close_matches


class GradDivError(ValueError):
    """A mistake in the input, told in one sentence: the thing, the value found and what was expected.

    The command line prints it without a traceback and exits with 2.
    """


class GradDivWarning(UserWarning):
    """Something the user should know about the result, which is computed nevertheless."""


def unknown(kind: str, name: str, known: Iterable[str]) -> GradDivError:
    """Return the error for a name that is not one of `known`, with the nearest that is."""
    known = list(known)
    folded = {candidate.lower(): candidate for candidate in known}
    nearest = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    hint = f", did you mean {folded[nearest[0]]!r}?" if nearest else ","
    return GradDivError(f"unknown {kind} {name!r}{hint} expected one of {', '.join(known)}")
