"""The paper's tables from our records, with its own values beside ours."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from graddiv.errors import GradDivError
from graddiv.recipes import title
from graddiv.records import (
    MODE_PREFIXES,
    PAPER_ATTACKS,
    PAPER_ROWS,
    PAPERS_TOTAL,
    AttackRecord,
    Row,
    Summary,
    over_trainings,
    table,
)
from graddiv.report.comparison import Comparison, Curves, PublishedValue, ReportRun, curves, is_eot, titles
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table
from graddiv.report.texts import bound

Value = TypeVar("Value")

LABELS = ("clean", *(f"{mode}{attack}" for mode in MODE_PREFIXES for attack in PAPER_ATTACKS))
"""Rows in the paper's order: by mode."""


def attack_table(comparison: Comparison) -> Table:
    """Clean accuracy, every attack and the Totals, at the one bound that the records are of."""
    attacked = [r for run in comparison.runs for r in run.attacks if not r.is_clean]
    if not attacked:
        raise GradDivError("no run was attacked: 'graddiv attack RUN' does it")
    epsilon = the_only("epsilon", (r.epsilon for r in attacked))
    ns = {r.n for r in attacked if r.mode == "eot"}
    n = the_only("n", ns) if ns else None
    groups = comparison.groups
    first = [group[0] for group in groups]
    found = [pooled_rows(group) for group in groups]
    labels = _labels(comparison, epsilon, n, found)
    papers = [{label: _papers(comparison, run, label, epsilon, n) for label in labels} for run in first]
    decides = [_lowest(of_run) for of_run in found]

    columns, marked, highlighted = ["attack"], set(), set()
    body, numbers = [[label] for label in labels], []
    for run, ours, theirs, deciding in zip(first, found, papers, decides, strict=True):
        for i, label in enumerate(labels):
            row = ours.get(label)
            text = _cell(row.accuracy) if row else NOT_RUN if _possible(run, label) else NOT_APPLICABLE
            if label == deciding:
                highlighted.add((i, len(columns)))
            body[i].append(text)
            numbers.append((label, run.method, run.lam, *_numbers(row), *_papers_numbers(theirs[label])))
        columns.append(run.title)
        if any(theirs.values()):
            marked.add(len(columns))
            for i, label in enumerate(labels):
                body[i].append(str(theirs[label] or NOT_APPLICABLE))
            columns.append(f"{run.title}, paper")
    return Table(
        name=f"attacks-eps{epsilon:.6g}",
        title=f"Accuracy (%) under attack, {comparison.data_title}, ε = {bound(epsilon)}",
        columns=tuple(columns),
        rows=tuple(tuple(row) for row in body),
        caption=_attack_caption(comparison, labels, decides, bool(marked)),
        published=frozenset(marked),
        highlighted=frozenset(highlighted),
        number_columns=(
            *("attack", "method", "lam", "mean", "std", "repeats", "low", "high", "per_draw"),
            *("paper_mean", "paper_std"),
        ),
        numbers=tuple(numbers),
    )


def accuracy_table(comparison: Comparison) -> Table:
    """EOT-FGSM, EOT-PGD and EOT-SPGD for each n against epsilon; the paper's values, of its supplement, below ours."""
    swept = swept_attacks(comparison)
    ours = {epsilon for *_, found in swept for _, points in found.of_runs for epsilon, _ in points}
    theirs_too = {epsilon for run in comparison.runs for epsilon in comparison.published(run).epsilons()}
    epsilons = [0.0, *sorted(ours | theirs_too)]
    body: list[tuple[str, ...]] = []
    marked, numbers, shown = set(), [], []
    for attack, n, runs, found in swept:
        of_runs = {run.path: dict(points) for run, points in found.of_runs}
        told: set[str] = set()
        for group in runs.groups:
            run = group[0]
            at = {0.0: comparison.clean(run), **of_runs.get(run.path, {})}
            theirs = dict(comparison.published(run).curve(run.method, f"EOT-{attack}", n))
            if not theirs and not of_runs.get(run.path):
                continue
            start = (f"EOT-{attack}", str(n or NOT_APPLICABLE), run.title)
            body.append((*start, "ours", *(_with_trainings(at.get(epsilon)) for epsilon in epsilons)))
            name_of_papers = papers_title(comparison, run)
            if theirs and name_of_papers not in told:  # once, where ours has it in several variants
                told.add(name_of_papers)
                marked.add(len(body))
                texts = (f"{theirs[e]:.2f}" if e in theirs else NOT_APPLICABLE for e in epsilons)
                body.append((*start[:2], name_of_papers, "paper", *texts))  # whatever ours are called
            for epsilon in epsilons:
                value, papers = at.get(epsilon), theirs.get(epsilon)
                shown += [value] if value is not None else []
                if value is not None or papers is not None:
                    row = _numbers(Row("", value, None) if value else None)[:-1]
                    theirs_here = "" if papers is None else papers / 100
                    numbers.append((start[0], n or "", run.method, run.title, epsilon, *row, theirs_here))
    return Table(
        name="accuracy-epsilon-table",
        title=f"Accuracy (%) against the perturbation bound ε, {comparison.data_title}",
        columns=("attack", "n", "method", "whose", "clean", *(f"ε = {epsilon:.4g}" for epsilon in epsilons[1:])),
        rows=tuple(body),
        caption=_accuracy_caption(
            comparison, [(attack, n, found.fixed) for attack, n, *_, found in swept], shown, bool(marked)
        ),
        published_rows=frozenset(marked),
        number_columns=(
            *("attack", "n", "method", "title", "epsilon"),
            *("mean", "std", "repeats", "low", "high", "paper_mean"),
        ),
        numbers=tuple(numbers),
    )


def swept_attacks(comparison: Comparison) -> list[tuple[str, int | None, Comparison, Curves]]:
    """(attack, n, its runs with these records alone, their curves over epsilon); n None: of deterministic networks."""
    swept = [
        (attack, n, runs, found)
        for attack in ("FGSM", "PGD", "SPGD")
        for n in _ns(comparison, attack)
        if (runs := _with_n(comparison, attack, n)).runs and (found := curves(runs, "epsilon", attack)) is not None
    ]
    if not swept:
        raise GradDivError(
            "no run was attacked with FGSM or PGD: 'graddiv attack RUN --attacks fgsm,pgd --modes eot' does it"
        )
    return swept


def checklist_table(comparison: Comparison) -> Table:
    """The behaviours of obfuscated gradients: for each run the verdict and the numbers behind it."""
    found = {run.path: {item["name"]: item for item in run.checklist} for run in comparison.runs}
    names = list(dict.fromkeys(name for items in found.values() for name in items))
    if not names:
        raise GradDivError("no run was gone through with the checklist: 'graddiv checklist RUN' does it")
    rows: list[tuple[str, ...]] = []
    highlighted = set()
    for name in names:
        for run, shown in zip(comparison.runs, titles(comparison.runs), strict=True):
            item = found[run.path].get(name, {"verdict": NOT_RUN, "sentence": ""})
            if item["verdict"] == "fail":
                highlighted.add((len(rows), 2))
            rows.append((name, shown, str(item["verdict"]), str(item["sentence"])))
    verdicts = Counter(row[2] for row in rows)
    papers = comparison.said("checklist", [(run, run.checklist_epsilon) for run in comparison.runs if run.checklist])
    return Table(
        name="checklist",
        title=f"Signs of gradients that hide, {comparison.data_title}",
        columns=("behaviour", "method", "verdict", "evidence"),
        rows=tuple(rows),
        caption=f"{', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}. "
        f"Ours: recipe scale {comparison.scale}, {comparison.data}.{papers}",
        highlighted=frozenset(highlighted),
    )


def _with_n(comparison: Comparison, attack: str, n: int | None) -> Comparison:
    """Its deterministic networks, or where n is given its random ones, with the records of this attack and this n."""
    runs = [run for run in comparison.runs if run.random == (n is not None)]
    return comparison.of(runs).only(lambda run, r: is_eot(run, r, attack) and (n is None or r.n == n))


def pooled_rows(group: Sequence[ReportRun]) -> dict[str, Row]:
    """The rows of one method by label, over its trainings; rows that not all of them have are left out."""
    of_runs = [{row.label: row for row in table(run.attacks)} if run.attacks else {} for run in group]
    rows = {}
    for label, row in of_runs[0].items():
        trainings = [rows_of_run[label] for rows_of_run in of_runs if label in rows_of_run]
        if len(trainings) == len(group):
            rows[label] = row._replace(accuracy=over_trainings([t.accuracy for t in trainings]))
    return rows


def papers_title(comparison: Comparison, run: ReportRun) -> str:
    """What the paper's values for a run are called; with the radius of our training, where there are several."""
    several = len(comparison.training_epsilons) > 1 and run.epsilon is not None
    return f"{title(run.method)}, for training at {run.epsilon:.4g}" if several else title(run.method)


def the_only(name: str, values: Iterable[Value]) -> Value:
    """The value that all records share."""
    found = sorted(set(values))  # type: ignore[type-var]
    if len(found) != 1:
        raise GradDivError(f"the records have {name} = {', '.join(map(str, found))}, expected one value of all of them")
    return found[0]


def scale_of_ours(comparison: Comparison, examples: set[int], repeats: set[int]) -> str:
    """How ours were obtained: "recipe scale demo, 100 test examples, 2 repeats"."""
    split = " or ".join(sorted({str(r.data.split) for run in comparison.runs for r in run.attacks}))
    plural = "" if repeats == {1} else "s"
    return f"recipe scale {comparison.scale}, {_range(examples)} {split} examples, {_range(repeats)} repeat{plural}"


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


def _possible(run: ReportRun, label: str) -> bool:
    return run.random or not label.startswith("EOT")


def _lowest(rows: dict[str, Row]) -> str | None:
    """The attack that decides the Total; none does where all leave the same."""
    attacks = {label: row.accuracy.mean for label, row in rows.items() if label != "clean" and "Total" not in label}
    return min(attacks, key=lambda label: attacks[label]) if len(set(attacks.values())) > 1 else None


def _cell(value: Summary) -> str:
    low, high = (f"{100 * bound:.0f}" for bound in value.interval)
    return f"{_short(value)} ({low}–{high}){_trainings(value)}"


def _with_trainings(value: Summary | None) -> str:
    return _short(value) + (_trainings(value) if value is not None else "")


def _trainings(value: Summary) -> str:
    """The spread over trainings, apart from that over draws."""
    return f"; trainings ± {100 * value.training_std:.1f}" if value.trainings else ""


def _short(value: Summary | None) -> str:
    if value is None:
        return NOT_RUN
    return f"{100 * value.mean:.1f}" + (f" ± {100 * value.std:.1f}" if value.std > 0 else "")


def _numbers(row: Row | None) -> tuple[object, ...]:
    if row is None:
        return ("", "", "", "", "", "")
    a = row.accuracy
    return (a.mean, a.std if a.std > 0 else "", a.repeats, *a.interval, "" if row.per_draw is None else row.per_draw)


def _papers_numbers(value: PublishedValue | None) -> tuple[object, ...]:
    return ("", "") if value is None else (value.mean / 100, "" if value.std is None else value.std / 100)


def _ns(comparison: Comparison, attack: str) -> list[int | None]:
    """Numbers of models of an attack; None for deterministic networks, which come first.

    The paper gives one row of EOT-FGSM and no n: the largest of ours stands beside it.
    """
    labels = (f"EOT-{attack}", f"EOT^1-{attack}")
    ours = sorted({r.n for run in comparison.runs if run.random for r in run.attacks if r.label in labels})
    return [None, *(ours if attack != "FGSM" else ours[-1:])]


def _range(values: set[Any]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


def _iterations(records: Iterable[AttackRecord]) -> str:
    found = {r.attack["name"]: r.m for r in records if r.attack and r.m > 1}
    return ", ".join(f"{name} {m}" for name, m in found.items())


def _attack_caption(comparison: Comparison, labels: Sequence[str], decides: Sequence[str | None], papers: bool) -> str:
    records = [r for run in comparison.runs for r in run.attacks]
    ns = {r.n for r in records if r.mode == "eot"}
    examples, repeats = {r.examples for r in records}, Counter((r.target, r.label) for r in records)
    run = [sum(label in {r.label for r in of[0].attacks} for label in PAPER_ROWS) for of in comparison.groups]
    deciding = [f"{a} for {of[0].title}" for of, a in zip(comparison.groups, decides, strict=True) if a]
    sentences = [
        f"Ours: {scale_of_ours(comparison, examples, set(repeats.values()))}"
        + (f", EOT over n = {_range(ns)} models" if ns else "")
        + (f"; iterations m: {iterations}" if (iterations := _iterations(records)) else "")
        + ".",
        "Mean ± std is over draws: every repeat is judged by two ensembles.  In parentheses the 95 % interval from the "
        "choice of examples and from the draws.",
    ]
    if deciding:
        sentences.append(f"Bold: the attack that decides the Total of its column, which is {', '.join(deciding)}.")
    if PAPERS_TOTAL in labels:
        sentences.append(
            f"{PAPERS_TOTAL} is over those of the paper's {len(PAPER_ROWS)} attacks that were run: "
            + ", ".join(f"{k} for {of[0].title}" for of, k in zip(comparison.groups, run, strict=True))
            + "."
        )
    if papers:
        sentences.append(f"In italics: the paper's values, at its own scale.{comparison.origin()}")
    return " ".join(sentences)


def _accuracy_caption(
    comparison: Comparison,
    used: Sequence[tuple[str, int | None, dict[str, Any]]],
    shown: Sequence[Summary],
    papers: bool,
) -> str:
    examples, repeats = {fixed["examples"] for *_, fixed in used}, {summary.repeats for summary in shown}
    widest = max(100 * (summary.interval.high - summary.interval.low) / 2 for summary in shown)
    of_attack: dict[str, dict[int, set[str]]] = {}
    for attack, n, fixed in used:
        of_attack.setdefault(attack, {}).setdefault(fixed["m"], set()).add(f"n = {n}")
    iterations = ", ".join(
        f"{attack} {m}" + (f" where {' or '.join(sorted(ns))}" if len(of_attack[attack]) > 1 else "")
        for attack, by_m in of_attack.items()
        for m, ns in by_m.items()
    )
    sentences = [
        f"Ours: {scale_of_ours(comparison, examples, repeats)}; iterations m: {iterations}.",
        "Mean ± std is over draws: every repeat is judged by two ensembles.  The 95 % interval from the choice of "
        f"examples and from the draws reaches up to {widest:.1f} points to either side.",
    ]
    if papers:
        sentences.append(f"In italics: the paper's values, at its own scale.{comparison.origin()}")
    return " ".join(sentences)
