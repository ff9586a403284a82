"""Sample models against each other: transfer, cosines, decision regions."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from graddiv.records import BoundaryRecord, GradientsRecord, TransferRecord
from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.output import Figure, Found, draws, listed
from graddiv.report.style import Look, Sheet, change, pair, scale

#: Paul Tol's muted palette, for ten classes.
CLASSES = (
    "#88CCEE", "#CC6677", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933", "#882255", "#DDDDDD",
)  # fmt: skip
PER_ROW = 5  #: sample models in a row of decision regions: two rows for each network, as in the paper
OUTLINE = withStroke(linewidth=2, foreground="black")  #: under what is white, so that it is seen on every class


def _side_by_side(
    runs: Sequence[ReportRun], matrices: Sequence[Float[np.ndarray, "k k"]], notes: Sequence[str],
    axis_labels: tuple[str, str], bar: str,
) -> Sheet:  # fmt: skip
    """Matrices in one scale of colors, lighter being more."""
    across = min(len(runs), 3)
    down = -(-len(runs) // across)
    sheet = Sheet(down, across, style.TWO_COLUMNS * across / 3 + 0.9, 2.35 * down + 0.2)
    low, high = min(float(m.min()) for m in matrices), max(float(m.max()) for m in matrices)
    for ax, run, title, matrix, note in zip(sheet.axes, runs, titles(runs), matrices, notes, strict=False):
        shown = ax.imshow(matrix, cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
        ax.set(title=f"{title}\n{note}", xlabel=axis_labels[1], ylabel=axis_labels[0])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
        ax.grid(False)
        ax.spines[:].set_visible(True)
        sheet.rows += [(run.method, run.lam, i, j, float(value)) for (i, j), value in np.ndenumerate(matrix)]
    for ax in sheet.axes[len(runs) :]:
        ax.set_visible(False)
    sheet.figure.colorbar(shown, ax=sheet.axes, label=bar, fraction=0.05, pad=0.02, shrink=0.75)
    return sheet


TRANSFER = ("Transfer of attacks between sample models", "method, lam, source, target, accuracy")
COSINES = ("Cosines between gradients of sample models", "method, lam, i, j, cosine")
REGIONS = ("Decision regions of sample models", "method, lam, model, along_first, along_second, class")


@draws("transfer", *TRANSFER, TransferRecord)
def transfer_matrices(comparison: Comparison, found: Found[TransferRecord]) -> Figure:
    """Accuracy of each sample model on the adversarial images of each other one."""
    runs, results = [run for run, _ in found], [record.accuracies for _, record in found]
    matrices = [np.round(100 * r.matrix, 4) for r in results]
    notes = [f"others: mean {100 * r.mean:.1f} ({100 * r.low:.0f}–{100 * r.high:.0f})" for r in results]
    sheet = _side_by_side(runs, matrices, notes, ("attacked sample model", "judging sample model"), bar=style.ACCURACY)
    said = [
        f"{title} {100 * r.mean:.1f} % (from {100 * r.low:.1f} to {100 * r.high:.1f}; "
        f"under their own attack {100 * r.own:.1f})"
        for title, r in zip(titles(runs), results, strict=True)
    ]
    record = found[0][1]
    settings = (f"PGD, ε = {record.epsilon:.4g}", f"m = {record.m}", f"{record.examples} test examples")
    papers = comparison.said("transfer", [(run, record.epsilon) for run, record in found])
    return sheet.done(
        f"Mean accuracy of sample models that were not attacked: {listed(said)}. Lighter: attacks transfer less."
        f"{papers} {scale(comparison, *settings)}"
    )


@draws("cosines", *COSINES, GradientsRecord)
def cosines(comparison: Comparison, found: Found[GradientsRecord]) -> Figure:
    """Cosines between the gradients of sample models at the first test example."""
    runs = [run for run, _ in found]
    matrices = [np.round(record.cosines[0].astype(float), 4) for _, record in found]
    means = [float(matrix[~np.eye(len(matrix), dtype=bool)].mean()) for matrix in matrices]
    notes = [f"mean {mean:.3f}" for mean in means]
    sheet = _side_by_side(runs, matrices, notes, ("sample model", "sample model"), bar="cosine of gradients")
    compared = pair(comparison.of(runs))
    if compared:
        before, after = (means[runs.index(run)] for run in compared)
        said = f"From {compared[0].title} to {compared[1].title} the mean cosine {change(before, after)}."
    else:
        said = f"Mean cosine: {listed([f'{t} {m:.3f}' for t, m in zip(titles(runs), means, strict=True)])}."
    settings = f"{len(matrices[0])} gradients at the first test example"
    return sheet.done(f"{said} Darker is more diverse. {scale(comparison, settings)}")


@draws("boundary", *REGIONS, BoundaryRecord)
def boundary(comparison: Comparison, found: Found[BoundaryRecord]) -> Figure:
    """Decision regions of sample models around the first test example."""
    models = min(record.models for _, record in found)
    across, down = min(models, PER_ROW) + 1, -(-models // PER_ROW)  # the last column is the ensemble's
    height = 1.22 * down * len(found) + 0.6
    sheet = Sheet(down * len(found), across, style.TWO_COLUMNS, height, sharex=True, sharey=True)
    names, shares = titles([run for run, _ in found]), []
    for place, (run, record) in enumerate(found):
        regions, c, reach = record.regions[0], np.array(record.coordinates), _reach(record)
        own = sheet.axes[place * down * across : (place + 1) * down * across]
        for line in range(1, down):
            own[line * across + across - 1].set_visible(False)
        for which in [*range(models), -1]:
            line, column = (0, across - 1) if which < 0 else divmod(which, PER_ROW)
            ax = own[line * across + column]
            _regions(ax, regions[which], c, reach)
            name = "ensemble" if which < 0 else f"model {which + 1}"
            ax.set_title(name)
            if place == len(found) - 1 and line == down - 1:
                ax.set_xlabel("1st direction")
            sheet.rows += [
                (run.method, run.lam, name, float(c[i]), float(c[j]), int(value))
                for (i, j), value in np.ndenumerate(regions[which])
            ]
        inside, shown = regions[:-1, reach <= 1 + 1e-6], regions[:-1].reshape(len(regions) - 1, -1)
        shares.append(f"{names[place]} {_disagreement(inside)} and {_disagreement(shown)}")
        own[0].set_ylabel(names[place].replace(" + ", "\n+ ") + "\n2nd direction")
    for k in sorted({int(c) for _, record in found for c in np.unique(record.regions[0])}):
        sheet.entry(Look(CLASSES[k % len(CLASSES)], "s", "none"), f"class {k}", markersize=6)
    return sheet.done(
        "The plane of two EOT-PGD perturbations (arrows; the second without its part along the first) of the first "
        f"test example, class {int(found[0][1].labels[0])}, and the outline of the ℓ∞ ball of radius "
        f"ε = {found[0][1].epsilon:.4g}. Share of points in the ball, and of all points shown, at which two sample "
        f"models name different classes: {'; '.join(shares)}. {scale(comparison)}",
        most=10,
    )


def _reach(record: BoundaryRecord) -> Float[np.ndarray, "g g"]:
    """The linf length of c_i axis_1 + c_j axis_2, over epsilon."""
    first, second = record.axes[0].reshape(2, -1).astype(float)
    c = np.array(record.coordinates)
    lengths = [[np.abs(a * first + b * second).max() for b in c] for a in c]
    return np.array(lengths) / float(record.epsilon)


def _disagreement(answers: Integer[np.ndarray, "models points"]) -> str:
    """The share of pairs of sample models and of points at which the two disagree."""
    pairs = [(answers[i] != answers[j]).mean() for i in range(len(answers)) for j in range(i)]
    return f"{100 * np.mean(pairs):.1f} %" if pairs else "0 %"


def _regions(ax: Axes, named: np.ndarray, c: Float[np.ndarray, " g"], reach: Float[np.ndarray, "g g"]) -> None:
    from scipy.ndimage import distance_transform_edt

    low, high = (float(end) for end in (c[0] - (c[1] - c[0]) / 2, c[-1] + (c[1] - c[0]) / 2))
    colours = ListedColormap([CLASSES[k % len(CLASSES)] for k in range(256)])
    norm, extent = BoundaryNorm(np.arange(257) - 0.5, 256), (low, high, low, high)
    ax.imshow(named.T, origin="lower", extent=extent, cmap=colours, norm=norm, interpolation="nearest")
    ax.contour(c, c, reach.T, levels=[1.0], colors="black", linewidths=0.8)
    arrow = {"arrowstyle": "-|>", "color": "white", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    for tip in ((1, 0), (0, 1)):
        ax.annotate("", xy=tip, xytext=(0, 0), arrowprops={**arrow, "path_effects": [OUTLINE]})
    for number in np.unique(named):
        where = np.argwhere((named == number) & (reach > 2))  # apart from the ball and its arrows
        inside = distance_transform_edt(np.pad(named == number, 1))[1:-1, 1:-1][tuple(where.T)]
        if inside.max(initial=0) > len(c) / 15:
            away = np.linalg.norm(where - where.mean(0), axis=1)  # decides between places as far from the border
            i, j = where[(inside - 0.1 * away).argmax()]
            text = ax.text(float(c[i]), float(c[j]), str(number), ha="center", va="center", fontsize=6, color="white")
            text.set_path_effects([OUTLINE])
    ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    ax.grid(False)
