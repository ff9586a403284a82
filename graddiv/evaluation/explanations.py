"""What each check of an audit says, for the terminal and for docs/checks.md: made from the docstrings of the checks."""

from graddiv.errors import unknown
from graddiv.evaluation import behaviours, checks  # noqa: F401 -- which register them
from graddiv.evaluation.inspection import BEHAVIOURS, CHECKS

EVERY = "all"  #: Stands for every check: their page.
INTRODUCTION = """# What each check says

`graddiv audit` makes these checks. `graddiv audit --explain NAME` prints an entry, by the names below, and the page of
an audit has it beside each verdict. [How an audit is read](audit.md) explains the rest of a report.

This page is made from the docstrings of the checks, by `graddiv audit --explain all`.
"""


def explain(name: str) -> str:
    """What raises a check, what it means and what to do; the page of all of them for `all`."""
    known = {**CHECKS, **BEHAVIOURS}
    if name == EVERY:
        return _page()
    if name not in known:
        raise unknown("check", name, [*known, EVERY])
    lines = [f"{title}: {said}" for title, said in known[name].explanation.items() if said]
    return "\n".join([f"{name}: {known[name].title}", *lines])


def _page() -> str:
    """Every check, as Markdown."""
    parts = [INTRODUCTION]
    for title, registry in (("Before the attacks", CHECKS), ("How the attacks behaved", BEHAVIOURS)):
        parts.append(f"## {title}\n")
        for name, check in registry.items():
            said = "\n".join(f"- **{what}**: {text}" for what, text in check.explanation.items() if text)
            decisive = " or ".join(check.decisive)
            sufficient = f"\n\nIf the verdict is {decisive}, the evidence is not sufficient." if decisive else ""
            parts.append(f"### {name}\n\n{check.title[0].upper()}{check.title[1:]}.\n\n{said}{sufficient}\n")
    return "\n".join(parts).rstrip()
