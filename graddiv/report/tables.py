"""The paper's tables from our records, with its own values beside ours."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from graddiv import published
from graddiv.errors import GradDivError
from graddiv.records import PAPER_ROWS, PAPERS_TOTAL, Record, Row, Summary, table
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table
from graddiv.report.study import RunFiles, Study, at_epsilon, sweep, usual_n
from graddiv.report.texts import bound

ATTACKS = ("FGSM", "PGD", "APGD-CE", "APGD-DLR", "B&B", "FAB", "Square")
LABELS = ("clean", *(f"{mode}{attack}" for mode in ("", "EOT^1-", "EOT-") for attack in ATTACKS))
"""Rows in the paper's order: by mode."""

DATA_TITLES = {"mnist": "MNIST", "mnist-mini": "MNIST-mini", "cifar10": "CIFAR-10", "stl10": "STL-10"}


def attack_table(study: Study, epsilon: float, n: int | None = None) -> Table:
    """Clean accuracy, every attack and the Totals at one bound; n: of EOT, that of most attacks if not given."""
    chosen = at_epsilon(study, epsilon, n)
    if not any(r.label != "clean" for records in chosen for r in records):
        raise GradDivError(
            f"no run was attacked at epsilon = {epsilon:g}: 'graddiv attack RUN --epsilon {epsilon:g}' does it"
        )
    found = [{row.label: row for row in table(records)} if records else {} for records in chosen]
    n = n or usual_n(r for records in chosen for r in records)
    labels = _labels(study, epsilon, n, found)
    papers = [{label: _papers(study, run, label, epsilon, n) for label in labels} for run in study.runs]
    decides = [_lowest(of_run) for of_run in found]

    columns, marked, highlighted = ["attack"], set(), set()
    body, numbers = [[label] for label in labels], []
    for run, ours, theirs, deciding in zip(study.runs, found, papers, decides, strict=True):
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
        title=f"Accuracy (%) under attack, {DATA_TITLES.get(study.data, study.data)}, ε = {bound(epsilon)}",
        columns=tuple(columns),
        rows=tuple(tuple(row) for row in body),
        caption=_attack_caption(study, chosen, decides, bool(marked)),
        published=frozenset(marked),
        highlighted=frozenset(highlighted),
        number_columns=(
            *("attack", "method", "lam", "mean", "std", "repeats", "low", "high", "per_draw"),
            *("paper_mean", "paper_std"),
        ),
        numbers=tuple(numbers),
    )


def accuracy_table(study: Study) -> Table:
    """EOT-FGSM and EOT-PGD for each n against epsilon, as in the supplement: ours, and the paper's below it."""
    swept = [
        (attack, n, found)
        for attack in ("FGSM", "PGD")
        for n in _ns(study, attack)
        if (found := sweep(_part(study, random=n is not None), "epsilon", attack, n=n)) is not None
    ]
    if not swept:
        raise GradDivError(
            "no run was attacked with FGSM or PGD: 'graddiv attack RUN --attacks fgsm,pgd --modes eot' does it"
        )
    ours = {epsilon for *_, found in swept for _, points in found.curves for epsilon, _ in points}
    epsilons = [0.0, *sorted(ours | set(published.epsilons(study.data)))]
    body: list[tuple[str, ...]] = []
    marked, numbers = set(), []
    for attack, n, found in swept:
        curves = {run.path: dict(points) for run, points in found.curves}
        for run in _part(study, random=n is not None).runs:
            at = {0.0: run.clean, **curves.get(run.path, {})}
            theirs = dict(published.curve(study.data, run.method, f"EOT-{attack}", n))
            start = (f"EOT-{attack}", str(n or NOT_APPLICABLE), run.title)
            body.append((*start, "ours", *(_short(at.get(epsilon)) for epsilon in epsilons)))
            if theirs:
                marked.add(len(body))
                texts = (f"{theirs[e]:.2f}" if e in theirs else NOT_APPLICABLE for e in epsilons)
                body.append((*start, "paper", *texts))
            for epsilon in epsilons:
                value, papers = at.get(epsilon), theirs.get(epsilon)
                if value or papers:
                    row = _numbers(Row("", value, None) if value else None)[:-1]
                    numbers.append((start[0], n or "", run.method, epsilon, *row, papers / 100 if papers else ""))
    return Table(
        name="accuracy-epsilon-table",
        title=f"Accuracy (%) against the perturbation bound ε, {DATA_TITLES.get(study.data, study.data)}",
        columns=("attack", "n", "method", "whose", "clean", *(f"ε = {epsilon:.4g}" for epsilon in epsilons[1:])),
        rows=tuple(body),
        caption=_accuracy_caption(study, {attack: found.fixed for attack, _, found in swept}, numbers, bool(marked)),
        published_rows=frozenset(marked),
        number_columns=("attack", "n", "method", "epsilon", "mean", "std", "repeats", "low", "high", "paper_mean"),
        numbers=tuple(numbers),
    )


def checklist_table(study: Study) -> Table:
    """The behaviours of obfuscated gradients: for each run the verdict and the numbers behind it."""
    found = {run.path: {item["name"]: item for item in run.checklist or []} for run in study.runs}
    names = list(dict.fromkeys(name for items in found.values() for name in items))
    if not names:
        raise GradDivError("no run was gone through with the checklist: 'graddiv checklist RUN' does it")
    rows: list[tuple[str, ...]] = []
    highlighted = set()
    for name in names:
        for run in study.runs:
            item = found[run.path].get(name, {"verdict": NOT_RUN, "sentence": ""})
            if item["verdict"] == "fail":
                highlighted.add((len(rows), 2))
            rows.append((name, run.title, str(item["verdict"]), str(item["sentence"])))
    verdicts = Counter(row[2] for row in rows)
    return Table(
        name="checklist",
        title=f"Signs of gradients that hide, {DATA_TITLES.get(study.data, study.data)}",
        columns=("behaviour", "method", "verdict", "evidence"),
        rows=tuple(rows),
        caption=f"{', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}. "
        f"Ours: recipe scale {study.scale}, {study.data}.",
        highlighted=frozenset(highlighted),
    )


def _part(study: Study, random: bool) -> Study:
    """Its randomized, or its deterministic, networks."""
    return Study(tuple(run for run in study.runs if run.random == random), study.scale)


def scale_of_ours(study: Study, examples: set[int], repeats: set[int]) -> str:
    """How ours were obtained: "recipe scale demo, 100 test examples, 2 repeats"."""
    split = " or ".join(sorted({str(r.data["split"]) for run in study.runs for r in run.attacks()}))
    plural = "" if repeats == {1} else "s"
    return f"recipe scale {study.scale}, {_range(examples)} {split} examples, {_range(repeats)} repeat{plural}"


def papers_origin(data: str) -> str:
    """Which of the paper's data sets its values are of, where it is not the same one."""
    other = published.STANDS_FOR.get(data)
    return f" They are of the whole {DATA_TITLES[other]}, which {DATA_TITLES[data]} is a part of." if other else ""


def _labels(study: Study, epsilon: float, n: int | None, found: Sequence[dict[str, Row]]) -> list[str]:
    """The rows: attacks some run has or the paper has, others by name, and the Totals."""
    run = {label: None for of_run in found for label in of_run}
    totals = [label for label in run if label.startswith("Total")]
    papers = [a for a in LABELS if any(_papers(study, of_run, a, epsilon, n) for of_run in study.runs)]
    known = [label for label in LABELS if label in run or label in papers]
    return [*known, *(label for label in run if label not in known and label not in totals), *totals]


def _papers(study: Study, run: RunFiles, label: str, epsilon: float, n: int | None) -> published.Value | None:
    """The paper's value for a row; its supplement writes EOT-PGD for the PGD of deterministic networks, too."""
    name = "Total" if label == PAPERS_TOTAL else label
    found = published.value(study.data, run.method, name, epsilon, n)
    if found is None and not run.random and label != "clean":
        found = published.value(study.data, run.method, f"EOT-{label}", epsilon)
    return found


def _possible(run: RunFiles, label: str) -> bool:
    return run.random or not label.startswith("EOT")


def _lowest(rows: dict[str, Row]) -> str | None:
    """The attack that decides the Total; none does where all leave the same."""
    attacks = {label: row.accuracy.mean for label, row in rows.items() if label != "clean" and "Total" not in label}
    return min(attacks, key=lambda label: attacks[label]) if len(set(attacks.values())) > 1 else None


def _cell(value: Summary) -> str:
    low, high = (f"{100 * bound:.0f}" for bound in value.interval)
    return f"{_short(value)} ({low}–{high})"


def _short(value: Summary | None) -> str:
    if value is None:
        return NOT_RUN
    return f"{100 * value.mean:.1f}" + (f" ± {100 * value.std:.1f}" if value.repeats > 1 else "")


def _numbers(row: Row | None) -> tuple[object, ...]:
    if row is None:
        return ("", "", "", "", "", "")
    mean, std, repeats, interval = row.accuracy
    return (mean, std if repeats > 1 else "", repeats, *interval, "" if row.per_draw is None else row.per_draw)


def _papers_numbers(value: published.Value | None) -> tuple[object, ...]:
    return ("", "") if value is None else (value.mean / 100, "" if value.std is None else value.std / 100)


def _ns(study: Study, attack: str) -> list[int | None]:
    """Numbers of models of an attack; None for deterministic networks, which come first.

    The paper gives one row of EOT-FGSM and no n: the largest of ours stands beside it.
    """
    labels = (f"EOT-{attack}", f"EOT^1-{attack}")
    ours = sorted({r.n for run in study.runs if run.random for r in run.attacks() if r.label in labels})
    return [None, *(ours if attack != "FGSM" else ours[-1:])]


def _range(values: set[Any]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


def _iterations(records: Iterable[Record]) -> str:
    found = {r.attack["name"]: r.m for r in records if r.attack and r.m > 1}
    return ", ".join(f"{name} {m}" for name, m in found.items())


def _attack_caption(
    study: Study, chosen: Sequence[Sequence[Record]], decides: Sequence[str | None], papers: bool
) -> str:
    records = [r for of_run in chosen for r in of_run]
    ns = {r.n for r in records if r.mode == "eot"}
    examples, repeats = {r.examples for r in records}, Counter((r.target, r.label) for r in records)
    run = [sum(label in {r.label for r in of_run} for label in PAPER_ROWS) for of_run in chosen]
    sentences = [
        f"Ours: {scale_of_ours(study, examples, set(repeats.values()))}"
        + (f", EOT over n = {_range(ns)} models" if ns else "")
        + (f"; iterations m: {iterations}" if (iterations := _iterations(records)) else "")
        + ".",
        "Mean ± std is over repeats with other draws; in parentheses the 95 % interval from the choice of examples.",
        "Bold: the attack that decides the Total of its column, which is "
        + ", ".join(f"{label} for {of.title}" for of, label in zip(study.runs, decides, strict=True) if label)
        + ".",
        f"Total (paper's rows) is over those of the paper's {len(PAPER_ROWS)} attacks that were run: "
        + ", ".join(f"{k} for {of.title}" for of, k in zip(study.runs, run, strict=True))
        + ".",
    ]
    if papers:
        sentences.append(f"In italics: the paper's values, at its own scale.{papers_origin(study.data)}")
    return " ".join(sentences)


def _accuracy_caption(
    study: Study, used: dict[str, dict[str, Any]], numbers: Sequence[Sequence[Any]], papers: bool
) -> str:
    examples, repeats = {fixed["examples"] for fixed in used.values()}, {row[6] for row in numbers if row[6] != ""}
    widest = max(100 * (row[8] - row[7]) / 2 for row in numbers if row[4] != "")
    iterations = ", ".join(f"{attack} {fixed['m']}" for attack, fixed in used.items())
    sentences = [
        f"Ours: {scale_of_ours(study, examples, repeats)}; iterations m: {iterations}.",
        "Mean ± std is over repeats with other draws; the 95 % interval from the choice of examples reaches up to "
        f"{widest:.1f} points to either side.",
    ]
    if papers:
        sentences.append(f"In italics: the paper's values, at its own scale.{papers_origin(study.data)}")
    return " ".join(sentences)
