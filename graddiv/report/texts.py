"""Numbers and sentences as the page writes them."""

import base64
import re
from collections.abc import Mapping

from graddiv.report.output import NOT_APPLICABLE


def data_uri(kind: str, content: bytes) -> str:
    """A file inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def percent(share: float) -> str:
    """Of a share, without the sign."""
    return f"{100 * share:.1f}"


def signed(value: float, digits: int = 1) -> str:
    """With + or a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def p_value(p: float) -> str:
    """Of a test, as papers write it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def bound(value: float) -> str:
    """8/255 for colour images, as papers write it; 0.3 as it is."""
    whole = round(255 * value)
    return f"{whole}/255" if value < 0.1 and whole and abs(255 * value - whole) < 1e-3 else f"{value:.4g}"


def legible(value: object) -> str:
    """A number with four digits, whatever holds it; other values as JSON has them."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOT_APPLICABLE}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {legible(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(legible(part) for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def count(value: int) -> str:
    """With narrow spaces between thousands."""
    return f"{value:,}".replace(",", "\u202f")


def duration(seconds: float) -> str:
    """In seconds, minutes or hours, as it is long."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return prose(text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else "."))


def prose(text: str) -> str:
    """Text with EOT¹ as it is spoken of, and no line break between a number and what belongs to it."""
    for breakable in (" %", " = ", " < ", " ± "):
        text = text.replace(breakable, breakable.replace(" ", "\u00a0"))
    return text.replace("EOT^1", "EOT¹")


GLOSSARY = {
    "MRL": "mean resultant length, the length of the mean of unit gradients: 1 where all draws push the same way, near "
    "0 where they cancel.",
    "κ": "kappa, the concentration of the von Mises-Fisher law fitted to gradient directions: large where they agree.",
    "deciding": "comparisons by which the item fails.",
    "telling": "comparisons that say something, but only warn.",
}
"""Words that readers of a page may not know."""


def terms(text: str) -> list[tuple[str, str]]:
    """The words of the glossary that occur in a text, with what they mean."""
    return [(word, meaning) for word, meaning in GLOSSARY.items() if re.search(rf"(?<!\w){word}", text)]
