"""The page beside tables and figures: single examples with their gradients, and the changes by GradDiv.

Two runs are judged on the same examples; verdict.html.jinja and crossing.html.jinja say it in words.
"""

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from graddiv import records
from graddiv.records import AttackRecord, ConcentrationRecord, Flips, GradientsRecord
from graddiv.report.comparison import Comparison, ReportRun, is_eot
from graddiv.report.output import Table, data_uri

MODES = ("fixed", "eot1", "eot")
MARKUP = 400  #: bytes around a picture
SIGNIFICANT = 0.05


class Grid(NamedTuple):
    """The accuracies under every attack at one epsilon and, for EOT, one n."""

    comparison: Comparison
    table: Table

    @property
    def epsilon(self) -> float:
        return self.comparison.attacks[0].epsilon

    @property
    def n(self) -> int:
        """n of EOT; 0 if there was none."""
        return max((r.n for r in self.comparison.attacks if r.mode == "eot"), default=0)

    def labels(self, *runs: ReportRun) -> list[str]:
        """Attacks that all these runs have: Totals over different attacks are not comparable."""
        found = dict.fromkeys(r.label for r in self.comparison.attacks)
        return [label for label in found if all(self.of(run, label) for run in runs)]

    def of(self, run: ReportRun, label: str) -> list[AttackRecord]:
        """The records of one row, a record for each repeat."""
        return [record for record in self.records(run) if record.label == label]

    def records(self, run: ReportRun) -> tuple[AttackRecord, ...]:
        """The records of a run, clean images among them."""
        return next((each.attacks for each in self.comparison.runs if each == run), ())


def close_ups(
    comparison: Comparison, compared: Sequence[ReportRun], grids: Sequence[Grid], default: Grid, room: int
) -> list[dict[str, Any]]:
    """The gradients and adversarial versions of the first examples, as many as there is room for."""
    clean = next((found[0] for run in compared if (found := default.of(run, "clean"))), None)
    if clean is None or clean.images.ndim != 4 or clean.images.shape[1] not in (1, 3):
        return []
    # of several n at one epsilon the largest: a gallery for each would fill the page
    by_n = sorted(grids, key=lambda grid: grid.n)
    widest = {grid.epsilon: grid for grid in by_n} | {default.epsilon: default}
    examples: list[dict[str, Any]] = []
    for ident, label, image in zip(clean.ids.tolist(), clean.labels.tolist(), clean.images, strict=False):
        galleries = [(grid, [_gallery(grid, run, ident) for run in compared]) for grid in widest.values()]
        shots = [shot for _, of_runs in galleries for rows in of_runs for row in rows.values() for shot in row]
        room -= sum(len(shot["image"]) + MARKUP for shot in shots if shot)
        if room < 0 and examples:
            break
        clouds = scatter(comparison, compared, ident)
        examples.append({"id": ident, "label": label, "image": png(image), "scatter": clouds, "galleries": galleries})
    return examples


def _gallery(grid: Grid, run: ReportRun, ident: int) -> dict[str, list[dict[str, Any] | None]]:
    """A row for each attack on an example, in it a picture for each mode."""
    rows: dict[str, list[dict[str, Any] | None]] = {}
    for record in grid.records(run):
        row = rows.setdefault(record.attack["name"] if record.attack else "clean", [None] * len(MODES))
        shown, mode = record.ids[: len(record.images)].tolist(), MODES.index(record.mode)
        if ident in shown and row[mode] is None:  # of several repeats the first
            i = shown.index(ident)
            said = {"right": bool(record.correct[i]), "models": int(record.right[i].sum()), "of": len(record.right[i])}
            row[mode] = {"image": png(record.images[i]), "label": record.label, **said}
    return rows


def scatter(comparison: Comparison, compared: Sequence[ReportRun], ident: int) -> list[dict[str, Any]]:
    """Unit gradients of both runs, seen in the plane of their two means; empty if they were not stored."""
    found = [record for run in compared if (record := run.measured(GradientsRecord)) and ident in record.ids]
    if len(found) != len(compared):
        return []
    kept = [record.gradients[record.ids == ident][0].astype(np.float64) for record in found]
    means = [v.mean(0) for v in kept]
    basis = plane(means[0], means[-1])
    return [
        {
            "run": comparison.runs.index(run),
            "title": run.title,
            "points": (v @ basis.T).round(3).tolist(),
            "mean": (mean @ basis.T).round(3).tolist(),
            "rho": float(np.linalg.norm(mean)),
            "n": len(v),
        }
        for run, v, mean in zip(compared, kept, means, strict=True)
    ]


def png(pixels: Float[np.ndarray, "c h w"]) -> str:
    """A gray or color image in [0, 1] as the data URI of a PNG."""
    from PIL import Image

    levels = np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0)).save(buffer, "png", optimize=True)
    return data_uri("image/png", buffer.getvalue())


def plane(mean_a: Float[np.ndarray, " p"], mean_b: Float[np.ndarray, " p"]) -> Float64[np.ndarray, "2 p"]:
    """An orthonormal basis of the plane of two means, the first axis along mean_a; if parallel, of one such plane."""
    return _orthonormal([mean_a, mean_b, *np.eye(3, len(mean_a))], 2)


def space(*samples: Float[np.ndarray, "_ p"]) -> Float64[np.ndarray, "3 p"]:
    """An orthonormal basis of the means of one or two samples, and of where the gradients spread most besides."""
    means = [v.mean(0, dtype=np.float64) for v in samples]
    flat = _orthonormal(means, len(means))
    around = np.concatenate([v.astype(np.float64) for v in samples])
    _, _, principal = np.linalg.svd(around - around @ flat.T @ flat, full_matrices=False)
    return _orthonormal([*flat, *principal, *np.eye(3, around.shape[1])], 3)


def _orthonormal(vectors: list[np.ndarray], wanted: int) -> Float64[np.ndarray, "d p"]:
    """Gram-Schmidt: the first `wanted` of the vectors that are no combination of those before them."""
    basis = np.zeros((0, len(vectors[0])))
    for vector in vectors:
        length = np.linalg.norm(vector)
        if len(basis) == wanted or length == 0:
            continue
        rest = vector / length
        for _ in range(2):  # once more removes what rounding left
            rest = rest - basis.T @ (basis @ rest)
        if np.linalg.norm(rest) > 1e-9:
            basis = np.vstack([basis, rest / np.linalg.norm(rest)])
    return basis


class Paired(NamedTuple):
    """Two runs on the same examples: shares of verdicts, over repeats and ensembles, in which each was right."""

    before: Float[np.ndarray, " b"]
    after: Float[np.ndarray, " b"]

    @property
    def points(self) -> float:
        """The difference in percentage points."""
        return 100 * float(self.after.mean() - self.before.mean())

    @property
    def flips(self) -> Flips:
        """Examples that went one way or the other, repeats taken together so that each example counts once."""
        return records.flips(self.before > self.after, self.after > self.before)

    @property
    def clear(self) -> bool:
        """Whether chance alone would rarely do this, and most examples went the way of the mean."""
        lost, won, p = self.flips
        return p < SIGNIFICANT and (won > lost) == (self.points > 0)


class Verdict(NamedTuple):
    """The changes from a run to the same with GradDiv."""

    titles: tuple[str, str]
    grid: Grid
    labels: list[str]  #: Attacks that were run on both.
    robust: Paired | None
    clean: Paired | None
    rho: tuple[float | None, float | None]  #: Concentration of the gradients, debiased.
    lower: tuple[int, int, float] | None  #: Examples where it is lower, all examples, and p; None without records.


def verdict(baseline: ReportRun, graddiv: ReportRun, grid: Grid) -> Verdict:
    """Compare two runs by the attacks of a grid, on clean images, and by the concentration of their gradients."""
    labels, runs = grid.labels(baseline, graddiv), (baseline, graddiv)
    robust, clean = (_paired(grid, baseline, graddiv, each) for each in (labels, ["clean"]))
    first, second = (run.measured(ConcentrationRecord) for run in runs)
    lower = None
    if first is not None and second is not None:
        _, a, b = np.intersect1d(first.ids, second.ids, return_indices=True)
        usable = first.usable[a] & second.usable[b]
        without, having = first.mean_cosine[a][usable], second.mean_cosine[b][usable]
        fallen, _, p = records.flips(having < without, without < having)
        lower = fallen, len(without), p
    rho = _rho(baseline, first), _rho(graddiv, second)
    return Verdict((baseline.title, graddiv.title), grid, labels, robust, clean, rho, lower)


def _rho(run: ReportRun, measured: ConcentrationRecord | None) -> float | None:
    """sqrt(max(0, mean cosine)): the concentration without the bias of a finite n; the training log's if need be."""
    if measured is not None:
        return math.sqrt(max(0.0, float(measured.mean_cosine[measured.usable].mean())))
    logged = run.epochs[-1].get("R_mean") if run.epochs else None
    return None if logged is None else math.sqrt(max(0.0, logged))


def crossing(curve: Comparison) -> dict[str, Any] | None:
    """The changes by GradDiv under EOT-PGD, at and beyond the radius of training, of the first pair over trainings."""
    if curve.pair is None:
        return None
    trained_at, other = (run.epsilon for run in curve.pair)
    if not trained_at or trained_at != other:
        return None
    baseline, graddiv = ([each for each in curve.runs if each.title == run.title] for run in curve.pair)
    curves = [(run, [r for r in run.attacks if is_eot(run, r, "PGD")]) for run in (*baseline, *graddiv)]
    found = {run: records.by_value(group, "epsilon") for run, group in curves}
    radii = sorted(set.intersection(*(set(of_run) for of_run in found.values())))
    beyond = [epsilon for epsilon in radii if epsilon > trained_at * (1 + 1e-9)]
    if trained_at not in radii or not beyond:
        return None

    def at(runs: Sequence[ReportRun], epsilon: float) -> Float[np.ndarray, " b"]:
        verdicts = [flags for run in runs for r in found[run][epsilon] for flags in (r.correct, r.correct_again)]
        return np.asarray(np.mean(verdicts, axis=0))

    pairs = {epsilon: Paired(at(baseline, epsilon), at(graddiv, epsilon)) for epsilon in (trained_at, *beyond)}
    far = max(beyond, key=lambda epsilon: abs(pairs[epsilon].points))
    trainings = len(baseline) if len(baseline) == len(graddiv) else 0  # shown only if both have as many
    compared = {"titles": [run.title for run in curve.pair], "trainings": trainings, "pairs": pairs}
    return {**compared, "trained_at": trained_at, "far": far}


def _paired(grid: Grid, baseline: ReportRun, graddiv: ReportRun, labels: Sequence[str]) -> Paired | None:
    """The cross-fitted Total over these attacks of the examples that both runs were judged on."""
    held = []  # of each run a record, and the share of verdicts for each of its examples
    for run in (baseline, graddiv):
        found = [r for label in labels for r in grid.of(run, label)]
        whole = [group for group in records.by_value(found, "repeat").values() if len(group) == len(labels)]
        if not whole:  # no repeat has all attacks
            return None
        verdicts = [flags for group in whole for flags in records.cross_fitted_total(group)]
        held.append((whole[0][0], np.mean(verdicts, axis=0)))
    (first, before), (second, after) = held
    _, a, b = np.intersect1d(first.ids, second.ids, return_indices=True)
    return Paired(before[a], after[b]) if len(a) and first.data == second.data else None
