"""Sample models against each other: transfer, cosines, decision regions."""

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from graddiv.records import BoundaryRecord, GradientsRecord, TransferRecord
from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.output import Figure, Found, caption, draws
from graddiv.report.style import Look, Sheet

#: Paul Tol's muted palette, for ten classes.
CLASSES = (
    "#88CCEE", "#CC6677", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933", "#882255", "#DDDDDD",
)  # fmt: skip
PER_ROW = 5  #: sample models in a row of decision regions: two rows for each network, as in the paper
OUTLINE = withStroke(linewidth=2, foreground="black")  #: under what is white, so that it is seen on every class


def _side_by_side(matrices: Mapping[ReportRun, np.ndarray], notes: Iterable[str], labels: str, bar: str) -> Sheet:
    """Matrices in one scale of colors, lighter being more; `labels` are those of the axes down and across."""
    across = min(len(matrices), 3)
    down = -(-len(matrices) // across)
    sheet = Sheet(down, across, style.TWO_COLUMNS * across / 3 + 0.9, 2.35 * down + 0.2)
    low, high = min(float(m.min()) for m in matrices.values()), max(float(m.max()) for m in matrices.values())
    downward, rightward = labels.split(", ")
    named = titles(list(matrices)).items()
    for ax, (run, title), note in zip(sheet.axes, named, notes, strict=False):
        shown = ax.imshow(matrices[run], cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
        ax.set(title=f"{title}\n{note}", xlabel=rightward, ylabel=downward)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
        ax.grid(False)
        ax.spines[:].set_visible(True)
        sheet.rows += [(run.method, run.lam, *place, float(value)) for place, value in np.ndenumerate(matrices[run])]
    for ax in sheet.axes[len(matrices) :]:
        ax.set_visible(False)
    sheet.figure.colorbar(shown, ax=sheet.axes, label=bar, fraction=0.05, pad=0.02, shrink=0.75)
    return sheet


TRANSFER = ("Transfer of attacks between sample models", "method, lam, source, target, accuracy")
COSINES = ("Cosines between gradients of sample models", "method, lam, i, j, cosine")
REGIONS = ("Decision regions of sample models", "method, lam, model, along_first, along_second, class")


@draws("transfer", *TRANSFER, TransferRecord)
def transfer_matrices(comparison: Comparison, found: Found[TransferRecord]) -> Figure:
    """Accuracy of each sample model on the adversarial images of each other one."""
    results = {run: record.accuracies for run, record in found}
    matrices = {run: np.round(100 * r.matrix, 4) for run, r in results.items()}
    notes = [f"others: mean {100 * r.mean:.1f} ({100 * r.low:.0f}–{100 * r.high:.0f})" for r in results.values()]
    sheet = _side_by_side(matrices, notes, "attacked sample model, judging sample model", style.ACCURACY)
    said = comparison.said("transfer", [(run, record.epsilon) for run, record in found])
    return sheet.done(caption("transfer", comparison, found[0][1], results, said))


@draws("cosines", *COSINES, GradientsRecord)
def cosines(comparison: Comparison, found: Found[GradientsRecord]) -> Figure:
    """Cosines between the gradients of sample models at the first test example."""
    matrices = {run: np.round(record.cosines[0].astype(float), 4) for run, record in found}
    means = {run: float(matrix[~np.eye(len(matrix), dtype=bool)].mean()) for run, matrix in matrices.items()}
    notes = [f"mean {mean:.3f}" for mean in means.values()]
    sheet = _side_by_side(matrices, notes, "sample model, sample model", "cosine of gradients")
    return sheet.done(caption("cosines", comparison, means, found[0][1].n))


@draws("boundary", *REGIONS, BoundaryRecord)
def boundary(comparison: Comparison, found: Found[BoundaryRecord]) -> Figure:
    """Decision regions of sample models around the first test example."""
    models = min(record.models for _, record in found)
    across, down = min(models, PER_ROW) + 1, -(-models // PER_ROW)  # the last column is the ensemble's
    height = 1.22 * down * len(found) + 0.6
    sheet = Sheet(down * len(found), across, style.TWO_COLUMNS, height, sharex=True, sharey=True)
    names, shares = titles([run for run, _ in found]), {}
    for place, (run, record) in enumerate(found):
        regions, c = record.regions[0], np.array(record.coordinates)
        first, second = record.axes[0].reshape(2, -1).astype(float)
        # the linf length of c_i axis_1 + c_j axis_2, over epsilon
        reach = np.abs((c[:, None] * first)[:, None] + c[:, None] * second).max(-1) / float(record.epsilon)
        own = sheet.axes[place * down * across : (place + 1) * down * across]
        for below in own[2 * across - 1 :: across]:  # below the ensemble
            below.set_visible(False)
        for which in [*range(models), -1]:
            line, column = (0, across - 1) if which < 0 else divmod(which, PER_ROW)
            ax = own[line * across + column]
            _regions(ax, regions[which], c, reach)
            name = "ensemble" if which < 0 else f"model {which + 1}"
            ax.set_title(name)
            if place == len(found) - 1 and line == down - 1:
                ax.set_xlabel("1st direction")
            for (i, j), value in np.ndenumerate(regions[which]):
                sheet.rows.append((run.method, run.lam, name, float(c[i]), float(c[j]), int(value)))
        inside, shown = regions[:-1, reach <= 1 + 1e-6], regions[:-1].reshape(len(regions) - 1, -1)
        shares[names[run]] = _disagreement(inside), _disagreement(shown)
        own[0].set_ylabel(names[run].replace(" + ", "\n+ ") + "\n2nd direction")
    for k in sorted({int(c) for _, record in found for c in np.unique(record.regions[0])}):
        sheet.entry(Look(CLASSES[k % len(CLASSES)], "s", "none"), f"class {k}", markersize=6)
    return sheet.done(caption("boundary", comparison, found[0][1], shares), most=10)


def _disagreement(answers: Integer[np.ndarray, "models points"]) -> float:
    """The share of pairs of sample models and of points at which the two disagree."""
    pairs = [(answers[i] != answers[j]).mean() for i in range(len(answers)) for j in range(i)]
    return float(np.mean(pairs)) if pairs else 0.0


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
        inside = distance_transform_edt(np.pad(named == number, 1))[1:-1, 1:-1]
        inside[reach <= 2] = 0  # there are the ball and its arrows
        if inside.max() > len(c) / 15:
            i, j = np.unravel_index(inside.argmax(), inside.shape)
            text = ax.text(float(c[i]), float(c[j]), str(number), ha="center", va="center", fontsize=6, color="white")
            text.set_path_effects([OUTLINE])
    ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    ax.grid(False)
