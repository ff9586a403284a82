"""Tables from our records: the paper's, with its own values beside ours, and every defense of the zoo in a row."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from graddiv import records
from graddiv.errors import GradDivError
from graddiv.experiment.cost import work_of_steps
from graddiv.recipes import title
from graddiv.records import ALL_TOTAL, PAPER_ROWS, PAPERS_TOTAL, GradientNoiseRecord, Interval, Row, Summary
from graddiv.report.comparison import Comparison, ReportRun, curves, is_eot, titles
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Found, Table, bound, caption, draws
from graddiv.report.published import PublishedValue

Value = TypeVar("Value")

LABELS = ("clean", *(f"{mode}{attack}" for mode in records.MODE_PREFIXES for attack in records.PAPER_ATTACKS))
NUMBERS = ("mean", "std", "repeats", "low", "high")
COMMENTED = " †: the row is a comment in the paper's source and was not printed."


@draws("attack-table", by="attack RUN")
def attack_table(comparison: Comparison) -> Table | None:
    """Clean accuracy, every attack and the Totals, at the one bound that the records are of."""
    attacked = comparison.attacks
    if not attacked:
        return None
    epsilon = the_only("epsilon", (r.epsilon for r in attacked))
    ns = {r.n for r in attacked if r.mode == "eot"}
    n = the_only("n", ns) if ns else None
    found = [pooled_rows(group) for group in comparison.groups]
    labels = _labels(comparison, epsilon, n, found)
    deciding = {group[0].title: _lowest(rows) for group, rows in zip(comparison.groups, found, strict=True)}
    columns, marked, highlighted = ["attack"], set(), set()
    body, numbers = [[label] for label in labels], []
    for (run, *_), ours in zip(comparison.groups, found, strict=True):
        theirs = [_papers(comparison, run, label, epsilon, n) for label in labels]
        for i, (label, paper) in enumerate(zip(labels, theirs, strict=True)):
            row = ours.get(label)
            missing = NOT_RUN if run.random or not label.startswith("EOT") else NOT_APPLICABLE
            body[i].append(_cell(row.accuracy) if row else missing)
            body[i] += [str(paper or NOT_APPLICABLE)] if any(theirs) else []
            per_draw = "" if row is None or row.per_draw is None else row.per_draw
            papers = ("", "") if paper is None else (paper.mean / 100, "" if paper.std is None else paper.std / 100)
            numbers.append((label, run.method, run.lam, *_numbers(row and row.accuracy), per_draw, *papers))
        highlighted |= {(i, len(columns)) for i, label in enumerate(labels) if label == deciding[run.title]}
        columns.append(run.title)
        if any(theirs):
            marked.add(len(columns))
            columns.append(f"{run.title}, paper")
    return Table(
        name=f"attacks-eps{epsilon:.6g}",
        title=f"Accuracy (%) under attack, {comparison.data_title}, ε = {bound(epsilon)}",
        columns=tuple(columns),
        rows=tuple(tuple(row) for row in body),
        caption=_attack_caption(comparison, deciding, n, PAPERS_TOTAL if PAPERS_TOTAL in labels else "", marked)
        + (COMMENTED if any("†" in cell for row in body for cell in row) else ""),
        published=frozenset(marked),
        highlighted=frozenset(highlighted),
        number_columns=("attack", "method", "lam", *NUMBERS, "per_draw", "paper_mean", "paper_std"),
        numbers=tuple(numbers),
    )


def _labels(comparison: Comparison, epsilon: float, n: int | None, found: Sequence[dict[str, Row]]) -> list[str]:
    """The rows: attacks some run has or the paper has, others by name, and the Totals."""
    run = {label: None for of_run in found for label in of_run}
    totals = [label for label in run if label.startswith("Total")]
    papers = [a for a in LABELS if any(_papers(comparison, of_run, a, epsilon, n) for of_run in comparison.runs)]
    known = [label for label in LABELS if label in run or label in papers]
    return [*known, *(label for label in run if label not in known and label not in totals), *totals]


def _papers(comparison: Comparison, run: ReportRun, label: str, epsilon: float, n: int | None) -> PublishedValue | None:
    """The paper's value for a row; its supplement writes EOT-PGD for the PGD of deterministic networks, too."""
    name = "Total" if label == PAPERS_TOTAL else label
    found = comparison.published(run).value(run.method, name, epsilon, n)
    if found is None and not run.random and label != "clean":
        found = comparison.published(run).value(run.method, f"EOT-{label}", epsilon)
    return found


def _lowest(rows: dict[str, Row]) -> str | None:
    """The attack with the lowest accuracy, which decides the Total; None if all are equal."""
    attacks = {label: row.accuracy.mean for label, row in rows.items() if label != "clean" and "Total" not in label}
    return min(attacks, key=lambda label: attacks[label]) if len(set(attacks.values())) > 1 else None


def _attack_caption(comparison: Comparison, deciding: Mapping[str, str | None], *words: object) -> str:
    """Describe how the records were made, the attack that decides, and the attacks of the paper's Total."""
    found = [r for run in comparison.runs for r in run.attacks]
    examples, repeats = {r.examples for r in found}, set(Counter((r.target, r.label) for r in found).values())
    iterations = {r.attack["name"]: r.m for r in found if r.attack and r.m > 1}
    counts = {of[0].title: len({r.label for r in of[0].attacks} & {*PAPER_ROWS}) for of in comparison.groups}
    named = {title: attack for title, attack in deciding.items() if attack}
    return caption("attack-table", comparison, examples, repeats, iterations, named, counts, len(PAPER_ROWS), *words)


class Line(NamedTuple):
    """A method under one attack: accuracies by epsilon, ours and the paper's."""

    attack: str
    n: int | None  #: None for deterministic networks
    run: ReportRun
    trainings: int  #: how many trainings of the method were attacked so
    fixed: dict[str, Any]  #: the other settings of the attack
    ours: dict[float, Summary]
    papers: dict[float, float]
    papers_title: str  #: empty if there are none, or another variant of the method shows them

    def texts(self, epsilons: Iterable[float]) -> Iterator[str]:
        """The paper's values."""
        return (f"{self.papers[e]:.2f}" if e in self.papers else NOT_APPLICABLE for e in epsilons)


SWEPT = "attack RUN --attacks fgsm,pgd --modes eot"  #: the command that makes the records of lines


def swept_lines(comparison: Comparison, papers_alone: bool) -> list[Line]:
    """EOT-FGSM, EOT-PGD and EOT-SPGD for each n; `papers_alone`: also methods that only the paper has."""
    lines: list[Line] = []
    for attack, n in [(a, n) for a in ("FGSM", "PGD", "SPGD") for n in _ns(comparison, a)]:
        runs = _with_n(comparison, attack, n)
        swept = curves(runs, "epsilon", attack) if runs.runs else None
        if swept is None:
            continue
        ours, told = {run.title: dict(points) for run, points in swept.of_runs}, set()
        for group in runs.groups:
            run, points = group[0], ours.get(group[0].title, {})
            theirs = dict(comparison.published(run).curve(run.method, f"EOT-{attack}", n))
            if points or (theirs and papers_alone):
                clean, name = comparison.clean(run), title(run.method)
                if len(comparison.training_epsilons) > 1 and run.epsilon is not None:
                    name += f", for training at {run.epsilon:.4g}"
                trainings = sum(any(not r.is_clean for r in each.attacks) for each in group)
                points = points if clean is None else {0.0: clean, **points}
                tells = name if theirs and name not in told else ""
                lines.append(Line(attack, n, run, trainings, swept.fixed, points, theirs, tells))
                told.add(tells)
    return lines


def _with_n(comparison: Comparison, attack: str, n: int | None) -> Comparison:
    """Its random networks, or if n is None its deterministic ones, with the records of this attack and n alone."""
    runs = [run for run in comparison.runs if run.random == (n is not None)]
    return comparison.of(runs).only(lambda run, r: is_eot(run, r, attack) and n in (None, r.n))


def _ns(comparison: Comparison, attack: str) -> list[int | None]:
    """Numbers of models of an attack; None for deterministic networks, which come first."""
    labels = (f"EOT-{attack}", f"EOT^1-{attack}")
    ours = sorted({r.n for run in comparison.runs if run.random for r in run.attacks if r.label in labels})
    return [None, *(ours if attack != "FGSM" else ours[-1:])]  # beside the paper's one row, which names no n


@draws("accuracy-table", "Accuracy (%) against the perturbation bound ε, {data}", by=SWEPT)
def accuracy_table(comparison: Comparison) -> Table | None:
    """EOT-FGSM, EOT-PGD and EOT-SPGD for each n against epsilon; the paper's values, of its supplement, below ours."""
    lines = swept_lines(comparison, papers_alone=True)
    if not lines:
        return None
    theirs_too = {epsilon for run in comparison.runs for epsilon in comparison.published(run).epsilons()}
    epsilons = sorted({0.0, *(epsilon for line in lines for epsilon in line.ours), *theirs_too})
    body: list[tuple[str, ...]] = []
    marked, numbers = set(), []
    for line in lines:
        name, n, run = f"EOT-{line.attack}", str(line.n or NOT_APPLICABLE), line.run
        cells = [NOT_RUN if e not in line.ours else _cell(line.ours[e], interval=False) for e in epsilons]
        body.append((name, n, run.title, "ours", *cells))
        if line.papers_title:
            marked.add(len(body))
            body.append((name, n, line.papers_title, "paper", *line.texts(epsilons)))
        for epsilon in epsilons:
            if epsilon in line.ours or epsilon in line.papers:
                papers = line.papers[epsilon] / 100 if epsilon in line.papers else ""
                values = (*_numbers(line.ours.get(epsilon)), papers)
                numbers.append((name, line.n or "", run.method, run.title, epsilon, *values))
    shown = [summary for line in lines for summary in line.ours.values()]
    examples, repeats = {line.fixed["examples"] for line in lines}, {summary.repeats for summary in shown}
    widest = max((summary.interval.high - summary.interval.low) / 2 for summary in shown)
    return Table(
        name="accuracy-epsilon-table",
        columns=("attack", "n", "method", "whose", "clean", *(f"ε = {epsilon:.4g}" for epsilon in epsilons[1:])),
        rows=tuple(body),
        caption=caption("accuracy-table", comparison, examples, repeats, widest, _iterations(lines), bool(marked)),
        published_rows=frozenset(marked),
        number_columns=("attack", "n", "method", "title", "epsilon", *NUMBERS, "paper_mean"),
        numbers=tuple(numbers),
    )


def _iterations(lines: Sequence[Line]) -> list[str]:
    """The iterations of each attack, and where they differ the n that they are of."""
    of_attack: dict[str, dict[int, set[str]]] = {}
    for line in lines:
        of_attack.setdefault(line.attack, {}).setdefault(line.fixed["m"], set()).add(f"n = {line.n}")
    return [
        f"{attack} {m}" + (f" where {' or '.join(sorted(ns))}" if len(by_m) > 1 else "")
        for attack, by_m in of_attack.items()
        for m, ns in by_m.items()
    ]


@draws("accuracy-summary", "Accuracy (%) under attack, {data}", by=SWEPT)
def accuracy_summary(comparison: Comparison) -> Table | None:
    """One number in a cell, with its spread over trainings, at the radii that were run; the paper's values, once."""
    lines = swept_lines(comparison, papers_alone=False)
    if not lines:
        return None
    epsilons = sorted({0.0, *(epsilon for line in lines for epsilon in line.ours)})
    rows: list[tuple[str, ...]] = []
    marked = set()
    for line in lines:
        name = f"EOT-{line.attack}, n = {line.n}" if line.n else line.attack
        cells = []
        for value in map(line.ours.get, epsilons):
            spread = f" ± {100 * value.training_std:.1f}" if value and value.trainings else ""
            cells.append(f"{100 * value.mean:.1f}{spread}" if value else NOT_APPLICABLE)
        rows.append((name, line.run.title, str(line.trainings), *cells))
        if line.papers_title:
            marked.add(len(rows))
            rows.append((name, f"{line.papers_title}, the paper's", NOT_APPLICABLE, *line.texts(epsilons)))
    return Table(
        columns=("attack", "method", "trainings", "clean", *(f"ε = {epsilon:.4g}" for epsilon in epsilons[1:])),
        rows=tuple(rows),
        caption=caption("accuracy-summary", comparison, sorted({line.fixed["examples"] for line in lines})),
        published_rows=frozenset(marked),
    )


@draws("checklist", "Signs of gradients that hide, {data}", "behaviour, method, verdict, evidence")
def checklist_table(comparison: Comparison) -> Table | None:
    """The behaviors of obfuscated gradients: for each run the verdict and the numbers behind it."""
    names, rows = titles(comparison.runs), []
    for name, items in comparison.checklist.items():
        for run, item in items.items():
            rows.append((name, names[run], *((item.verdict, item.sentence) if item else (NOT_RUN, ""))))
    if not rows:
        return None
    said = comparison.said("checklist", [(run, run.checklist_epsilon) for run in comparison.runs if run.checklist])
    return Table(
        rows=tuple(rows),
        caption=caption("checklist", comparison, Counter(row[2] for row in rows), said),
        highlighted=frozenset((i, 2) for i, row in enumerate(rows) if row[2] == "fail"),
    )


ENOUGH = 0.9  #: the cosine to the true gradient for which draws are counted
NOISE = "method, where, ρ, |μ|, tr Cov, q, cosine predicted, cosine measured, draws for 0.9"


@draws("gradient-noise", "What an adversary sees of the gradient, {data}", NOISE, GradientNoiseRecord)
def gradient_noise_table(comparison: Comparison, found: Found[GradientNoiseRecord]) -> Table:
    """The noise of the gradients that an adversary sees, at x0 and at the attacked point, and what it predicts."""
    rows, names = [], titles([run for run, _ in found])
    for run, record in found:
        measures = (record.rho, record.mean_length, record.trace, record.q, record.predicted, record.measured)
        for i, place in enumerate(("clean x", "attacked x")):
            medians = [float(np.median(values[:, i])) for values in measures]
            draws_needed = math.ceil(ENOUGH**2 / (1 - ENOUGH**2) / max(medians[3], 1e-9))
            rows.append((names[run], place, *(f"{value:.2f}" for value in medians), str(draws_needed)))
    n = " or ".join(map(str, sorted({record.n for _, record in found})))
    return Table(rows=tuple(rows), caption=caption("gradient-noise", comparison, n, ENOUGH))


def pooled_rows(group: Sequence[ReportRun]) -> dict[str, Row]:
    """The rows of one method by label, over its trainings; rows that not all of them have are left out."""
    of_runs = [{row.label: row for row in records.table(run.attacks)} if run.attacks else {} for run in group]
    shared = [label for label in of_runs[0] if all(label in rows for rows in of_runs)]
    pooled = {label: records.over_trainings([rows[label].accuracy for rows in of_runs]) for label in shared}
    return {label: of_runs[0][label]._replace(accuracy=accuracy) for label, accuracy in pooled.items()}


def the_only(name: str, values: Iterable[Value]) -> Value:
    """The value that all records share."""
    found = sorted(set(values))  # type: ignore[type-var]
    if len(found) != 1:
        raise GradDivError(f"the records have {name} = {', '.join(map(str, found))}, expected one value of all of them")
    return found[0]


def _cell(value: Summary, interval: bool = True) -> str:
    """Mean ± std over draws, the interval, and the spread over trainings."""
    std = f" ± {100 * value.std:.1f}" if value.std > 0 else ""
    low, high = (f"{100 * end:.0f}" for end in value.interval)
    within = f" ({low}–{high})" if interval else ""
    trainings = f"; trainings ± {100 * value.training_std:.1f}" if value.trainings else ""
    return f"{100 * value.mean:.1f}{std}{within}{trainings}"


def _numbers(value: Summary | None) -> tuple[object, ...]:
    if value is None:
        return ("",) * len(NUMBERS)
    return (value.mean, value.std if value.std > 0 else "", value.repeats, *value.interval)


CERTIFIED_AT = 0.25  #: the l_2 radius, in pixel units, at which certified accuracy is shown
PROXY = "*"  #: behind an accuracy that was attacked with the gradient of a stand-in
STRONG = ("SPGD", "ARC")  #: attacks for diverse gradients, of which the one that does best is shown

#: Columns of accuracies: what the adversary of PGD knows -> the row of the table of attacks.
ADVERSARIES = {
    "clean": "clean",
    "fixed draw": "PGD",
    "fresh draws": "EOT^1-PGD",
    "mean of draws": "EOT-PGD",
    "paper's Total": PAPERS_TOTAL,
    "all attacks": ALL_TOTAL,
    "strong": "",
}


@draws("zoo-table", by="reproduce zoo")
def zoo_table(comparison: Comparison) -> Table | None:
    """Accuracy by what the adversary knows, concentration, what randomness buys, certificates and training cost."""
    attacked, groups = comparison.attacks, comparison.groups
    if not attacked:
        return None
    epsilon = the_only("epsilon", (r.epsilon for r in attacked))
    cheapest = min(work_of_steps(run.experiment) for run in comparison.runs)
    body, numbers, totals = [], [], dict[str, Interval]()
    for group in groups:
        name, found = group[0].title, pooled_rows(group)
        values = _zoo_values(group, found, cheapest)
        body.append((name, *(_zoo_text(group, column, value) for column, value in values.items())))
        numbers += [(name, column, "" if value is None else value) for column, value in values.items()]
        totals |= {name: found[ALL_TOTAL].accuracy.interval} if ALL_TOTAL in found else {}
    first = next(iter(totals), "") if len(totals) > 1 else ""  # which gains over it survive an adversary that knows
    words = {
        "examples": {r.examples for run in comparison.runs for r in run.attacks},
        "repeats": {len({r.repeat for r in run.attacks}) for run in comparison.runs},
        "first": first,
        "above": [name for name, interval in totals.items() if first and interval.low > totals[first].high],
        "radii": sorted({record.epsilon for _, record in comparison.with_measurement(records.TransferRecord)}),
        "certified_at": CERTIFIED_AT,
        "proxy": PROXY if any(r.proxy_gradient for r in attacked) else "",
    }
    return Table(
        name="zoo",
        title=f"Defenses of the literature, {comparison.data_title}, ε = {bound(epsilon)}",
        columns=("defense", *values),
        rows=tuple(body),
        caption=caption("zoo-table", comparison, **words),
        number_columns=("defense", "what", "value"),
        numbers=tuple(numbers),
    )


def _zoo_values(group: Sequence[ReportRun], rows: dict[str, Row], cheapest: float) -> dict[str, float | None]:
    """The numbers of one row; None where there is no record of it, or it makes no sense."""
    accuracies = {label: 100 * row.accuracy.mean for label, row in rows.items()}
    strong = [value for label, value in accuracies.items() if label.removeprefix("EOT-").startswith(STRONG)]
    found = {column: accuracies.get(label) for column, label in ADVERSARIES.items()}
    concentration = [c for run in group if (c := run.measured(records.ConcentrationRecord))]
    transfer = [t.accuracies for run in group if (t := run.measured(records.TransferRecord))]
    proofs = [p for run in group if (p := run.measured(records.CertificateRecord)) and p.sigma > 0]
    return {
        **found,
        "strong": min(strong, default=None),
        "ρ": _mean([float(np.nanmedian(c.rho_debiased)) for c in concentration]),
        "own model": _mean([100 * t.own for t in transfer]),
        "other models": _mean([100 * t.mean for t in transfer]),
        "certified": _mean([100 * p.accuracy(CERTIFIED_AT) for p in proofs]),
        "training": float(np.mean([work_of_steps(run.experiment) for run in group])) / cheapest,
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _zoo_text(group: Sequence[ReportRun], name: str, value: float | None) -> str:
    if value is None:
        of_random_ones = name in ("fresh draws", "mean of draws", "own model", "other models")
        missing = name != "certified" and (group[0].random or not of_random_ones)
        return NOT_RUN if missing else NOT_APPLICABLE
    proxy = name in ADVERSARIES and name != "clean" and any(r.proxy_gradient for run in group for r in run.attacks)
    return f"{value:.2f}" if name == "ρ" else f"{value:.1f}{PROXY if proxy else '×' if name == 'training' else ''}"
