"""Accuracy against epsilon at a glance: one number in a cell, with its spread over trainings."""

from graddiv.records import Summary
from graddiv.report.comparison import Comparison
from graddiv.report.output import NOT_APPLICABLE, Table
from graddiv.report.tables import papers_title, swept_attacks


def accuracy_summary(comparison: Comparison) -> Table:
    """A row for each method under each attack, at the radii that were run; the paper's values, once, below ours."""
    swept = swept_attacks(comparison)
    epsilons = [0.0, *sorted({epsilon for *_, found in swept for _, points in found.of_runs for epsilon, _ in points})]
    rows: list[tuple[str, ...]] = []
    marked = set()
    for attack, n, runs, found in swept:
        name = f"EOT-{attack}, n = {n}" if n else attack
        told: set[str] = set()
        for run, points in found.of_runs:
            at = {0.0: comparison.clean(run), **dict(points)}
            trainings = [
                each for each in runs.runs if each.title == run.title and not all(r.is_clean for r in each.attacks)
            ]
            rows.append((name, run.title, str(len(trainings)), *(_cell(at.get(epsilon)) for epsilon in epsilons)))
            papers = dict(comparison.published(run).curve(run.method, f"EOT-{attack}", n))
            name_of_papers = papers_title(comparison, run)
            if papers and name_of_papers not in told:
                told.add(name_of_papers)
                marked.add(len(rows))
                texts = (f"{papers[e]:.2f}" if e in papers else NOT_APPLICABLE for e in epsilons)
                rows.append((name, f"{name_of_papers}, the paper's", NOT_APPLICABLE, *texts))
    examples = {found.fixed["examples"] for *_, found in swept}
    return Table(
        name="accuracy-summary",
        title=f"Accuracy (%) under attack, {comparison.data_title}",
        columns=("attack", "method", "trainings", "clean", *(f"ε = {epsilon:.4g}" for epsilon in epsilons[1:])),
        rows=tuple(rows),
        caption=(
            f"Means over trainings ± their standard deviation. Ours: recipe scale {comparison.scale}, "
            f"{' or '.join(map(str, sorted(examples)))} test examples. "
            f"In italics: the paper's values, at its own scale.{comparison.origin()}"
        ),
        published_rows=frozenset(marked),
    )


def _cell(value: Summary | None) -> str:
    if value is None:
        return NOT_APPLICABLE
    return f"{100 * value.mean:.1f}" + (f" ± {100 * value.training_std:.1f}" if value.trainings else "")
