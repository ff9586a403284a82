"""Accuracy against what an attack spends: sample models, iterations, passes."""

from collections.abc import Sequence

from graddiv.report import style
from graddiv.report.comparison import Comparison, Curves, curves, is_eot
from graddiv.report.figures.accuracy import (
    COLUMNS,
    compared_at,
    from_clean,
    legend,
    percent,
    plot_accuracy,
    plot_papers,
    setting,
)
from graddiv.report.figures.common import draws, legend_below, looks, missing, panels, scale
from graddiv.report.output import Figure

PAPERS_N = (1, 5, 10, 20)
"""Numbers of sample models for which the paper has values of EOT-PGD."""


@draws("n-sensitivity")
def n_sensitivity(comparison: Comparison) -> Figure:
    """Accuracy under EOT-PGD against the number n of sample models per step."""
    swept = curves(comparison, "n")
    if swept is None or not any(len(points) > 1 and run.random for run, points in swept.of_runs):
        raise missing("n-sensitivity", "records of EOT-PGD for several n", "sweep RUN --over n --values 1,5,10,20")
    random = Curves(swept.fixed, tuple((run, points) for run, points in swept.of_runs if run.random))
    return _sensitivity(comparison, "n-sensitivity", [random], "n", "sample models per step of EOT-PGD, n")


@draws("m-sensitivity")
def m_sensitivity(comparison: Comparison) -> Figure:
    """Accuracy under EOT-PGD against its iterations m."""
    swept = curves(comparison, "m")
    if swept is None or not any(len(points) > 1 for _, points in swept.of_runs):
        raise missing("m-sensitivity", "records of EOT-PGD for several m", "sweep RUN --over m --values 5,20,50")
    return _sensitivity(comparison, "m-sensitivity", [swept], "m", "iterations of EOT-PGD, m")


@draws("passes-sensitivity")
def passes_sensitivity(comparison: Comparison) -> Figure:
    """Accuracy under EOT-SPGD against its passes, n m, at each radius: whether the adversary has settled."""
    radii = sorted({r.epsilon for run in comparison.runs for r in run.attacks if is_eot(run, r, "SPGD")})
    found = [swept for radius in radii if (swept := curves(_at(comparison, radius), "m", "SPGD")) is not None]
    if not any(len(points) > 1 for swept in found for _, points in swept.of_runs):
        raise missing(
            "passes-sensitivity",
            "records of EOT-SPGD for several m",
            "attack RUN --attacks spgd --modes eot --n 4 --m 400",
        )
    in_passes = [
        Curves(s.fixed, tuple((run, [(s.fixed["n"] * m, at) for m, at in points]) for run, points in s.of_runs))
        for s in found
    ]
    return _sensitivity(comparison, "passes-sensitivity", in_passes, "passes", "passes of EOT-SPGD for an image, n m")


def _at(comparison: Comparison, radius: float) -> Comparison:
    return comparison.only(lambda _, record: record.epsilon == radius)


SWEPT = {"n": "n", "m": "its iterations", "passes": "its passes"}
"""What is varied, as titles call it."""


def _sensitivity(comparison: Comparison, name: str, found: Sequence[Curves], vary: str, label: str) -> Figure:
    """A panel for each of the curves, which differ in their radius."""
    clean, several = vary == "m", len(found) > 1
    columns = min(len(found), 2)
    lines = -(-len(found) // columns)
    width = style.TWO_COLUMNS if several else style.ONE_COLUMN * 1.2
    figure, every = panels(lines, columns, width, 2.9 if lines == 1 else 2.3 * lines)
    for spare in every[len(found) :]:
        spare.remove()
    runs = list({run.path: run for swept in found for run, _ in swept.of_runs}.values())
    run_looks = looks(runs)
    of_run = dict(zip([run.path for run in runs], run_looks, strict=True))
    rows, papers = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for axes, swept in zip(every, found, strict=False):
        ours, theirs = list[tuple[object, ...]](), list[tuple[object, ...]]()
        at = swept.fixed["epsilon"]
        for run, points in swept.of_runs:
            look = of_run[run.path]
            ours += plot_accuracy(axes, run, look, from_clean(comparison, run, points, 0) if clean else points)
            if vary == "n":
                values = [(n, comparison.published(run).value(run.method, "EOT-PGD", at, n)) for n in PAPERS_N]
                theirs += plot_papers(axes, run, look, [(n, value.mean) for n, value in values if value is not None])
        percent(axes, label)
        if vary != "m":
            counts = sorted({row[3] for row in (*ours, *theirs)})  # type: ignore[type-var]
            axes.set_xscale("log")
            axes.set_xticks(counts, [str(n) for n in counts])  # type: ignore[arg-type]
            axes.minorticks_off()
        if several:
            axes.set_title(f"ε = {at:.4g}")
            ours = [(*row, at) for row in ours]
        rows, papers = rows + ours, papers + theirs
    legend_below(figure, legend(runs, run_looks, bool(papers)), 2)
    zero = " m = 0: without an attack." if clean else ""
    theirs_too = f" Dashed: the paper's values.{comparison.origin()}" if papers else ""
    said = comparison.said(name, [(run, swept.fixed["epsilon"]) for swept in found for run, _ in swept.of_runs])
    return Figure(
        name=name,
        title=f"Accuracy under EOT-{'SPGD' if vary == 'passes' else 'PGD'} against {SWEPT[vary]}",
        figure=figure,
        columns=(*COLUMNS, "epsilon") if several else COLUMNS,
        rows=(*rows, *papers),
        caption=f"{_seen(found, vary)}{zero}{theirs_too}{said} {scale(comparison, *_settings(found))}",
    )


def _seen(found: Sequence[Curves], vary: str) -> str:
    """What is to be seen at each radius."""
    if len(found) == 1:
        return compared_at(found[0], vary)
    sentences = [(swept.fixed["epsilon"], compared_at(swept, vary)) for swept in found]
    return " ".join(f"ε = {epsilon:.4g}: {text[0].lower()}{text[1:]}" for epsilon, text in sentences)


def _settings(found: Sequence[Curves]) -> list[str]:
    """The settings that the points share; panels say their radius themselves."""
    if len(found) == 1:
        return [setting(found[0])]
    of_panels = [{key: value for key, value in swept.fixed.items() if key != "epsilon"} for swept in found]
    return list(dict.fromkeys(setting(Curves(fixed, ())) for fixed in of_panels))
