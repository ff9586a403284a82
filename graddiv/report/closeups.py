"""What a reader of the page chooses among: tables of attacks, pairs of runs, single examples with their gradients."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from graddiv.records import AttackRecord, GradientsRecord
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.output import Table, bound, data_uri

MODES = ("fixed", "eot1", "eot")
MARKUP = 400  #: bytes around a picture


class Grid(NamedTuple):
    """What every attack left at one epsilon and, for EOT, one n."""

    epsilon: float
    n: int  #: 0 where no EOT was run
    comparison: Comparison
    table: Table

    def labels(self, *runs: ReportRun) -> list[str]:
        """Attacks that were run on all these runs: Totals over different attacks do not compare."""
        found = dict.fromkeys(r.label for run in self.comparison.runs for r in run.attacks if not r.is_clean)
        return [label for label in found if all(self.of(run, label) for run in runs)]

    def of(self, run: ReportRun, label: str) -> list[AttackRecord]:
        """The records of one row, a record for each repeat."""
        return [record for record in self.records(run.path) if record.label == label]

    def records(self, path: Path) -> tuple[AttackRecord, ...]:
        """The records of a run, clean images among them."""
        return next((run.attacks for run in self.comparison.runs if run.path == path), ())


def grid_of(comparison: Comparison, table: Table) -> Grid:
    """The grid that a table of attacks shows."""
    attacked = [r for run in comparison.runs for r in run.attacks if not r.is_clean]
    n = max((r.n for r in attacked if r.mode == "eot"), default=0)
    return Grid(attacked[0].epsilon, n, comparison, table)


def find_pairs(comparison: Comparison) -> list[tuple[ReportRun, ReportRun]]:
    """Each run with GradDiv beside the run of the same method, data and seed without it."""

    def base(run: ReportRun) -> ReportRun | None:
        wanted = (run.method.partition("+")[0], run.data, run.experiment.seed)
        return next((r for r in comparison.runs if (r.method, r.data, r.experiment.seed) == wanted), None)

    found = [(base(run), run) for run in comparison.runs if "+graddiv" in run.method]
    return [(plain, run) for plain, run in found if plain is not None]


def close_ups(
    comparison: Comparison, compared: Sequence[ReportRun], grids: Sequence[Grid], default: Grid, room: int
) -> list[dict[str, Any]]:
    """As many of the first examples as there is room for: their gradients and their adversarial versions."""
    clean = next((found[0] for run in compared if (found := default.of(run, "clean"))), None)
    if clean is None or clean.images.ndim != 4 or clean.images.shape[1] not in (1, 3):
        return []
    # of several n at one epsilon the largest: a gallery for each would fill the page
    by_n = sorted(grids, key=lambda grid: grid.n)
    widest = {grid.epsilon: grid for grid in by_n} | {default.epsilon: default}
    examples: list[dict[str, Any]] = []
    for place, ident in enumerate(clean.ids[: len(clean.images)].tolist()):
        galleries = [_gallery(grid, compared, ident) for grid in widest.values()]
        shots = [shot for gallery in galleries for run in gallery["runs"] for row in run for shot in row["shots"]]
        room -= sum(len(shot["image"]) + MARKUP for shot in shots if shot)
        if room < 0 and examples:
            break
        examples.append(
            {
                "id": ident,
                "label": int(clean.labels[place]),
                "image": png(clean.images[place]),
                "scatter": scatter(comparison, compared, ident),
                "galleries": galleries,
            }
        )
    return examples


def _gallery(grid: Grid, compared: Sequence[ReportRun], ident: int) -> dict[str, Any]:
    """For each run a row for each attack, in it a picture for each mode."""
    of_runs = []
    for run in compared:
        found: dict[tuple[str, str], AttackRecord] = {}
        for record in grid.records(run.path):
            name = record.attack["name"] if record.attack else "clean"
            found.setdefault((name, record.mode), record)  # of several repeats the first
        names = dict.fromkeys(name for name, _ in found)
        of_runs.append(
            [{"name": name, "shots": [_shot(found.get((name, mode)), ident) for mode in MODES]} for name in names]
        )
    return {"epsilon": grid.epsilon, "text": bound(grid.epsilon), "n": grid.n, "runs": of_runs}


def _shot(record: AttackRecord | None, ident: int) -> dict[str, Any] | None:
    """An image and what the ensemble and its models said of it."""
    if record is None or ident not in record.ids[: len(record.images)]:
        return None
    place = record.ids.tolist().index(ident)
    return {
        "image": png(record.images[place]),
        "label": record.label,
        "right": bool(record.correct[place]),
        "models": int(record.right[place].sum()),
        "of": record.right.shape[1],
    }


def scatter(comparison: Comparison, compared: Sequence[ReportRun], ident: int) -> list[dict[str, Any]]:
    """Unit gradients of both runs, seen in the plane of their two means."""
    kept = [v for run in compared if (v := _gradients(run, ident)) is not None]
    if len(kept) != len(compared):
        return []
    means = [v.mean(0) for v in kept]
    basis = plane(means[0], means[-1])
    return [
        {
            "run": [other.path for other in comparison.runs].index(run.path),
            "title": run.title,
            "points": project(v, basis).round(3).tolist(),
            "mean": project(mean, basis).round(3).tolist(),
            "rho": float(np.linalg.norm(mean)),
            "n": len(v),
        }
        for run, v, mean in zip(compared, kept, means, strict=True)
    ]


def _gradients(run: ReportRun, ident: int) -> Float[np.ndarray, "n p"] | None:
    """The unit gradients of the sample models at one example, if they were stored."""
    record = run.measured(GradientsRecord)
    if record is None or ident not in record.ids:
        return None
    gradients: np.ndarray = record.gradients[record.ids == ident][0].astype(np.float64)
    return gradients


def png(pixels: Float[np.ndarray, "c h w"]) -> str:
    """A gray or color image in [0, 1] as the data URI of a PNG."""
    c, h, w = pixels.shape
    rows = np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0).reshape(h, w * c)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", w, h, 8, 0 if c == 1 else 2, 0, 0, 0)
    unfiltered = b"".join(b"\0" + row.tobytes() for row in rows)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(unfiltered, 9)) + chunk(b"IEND", b"")
    return data_uri("image/png", b"\x89PNG\r\n\x1a\n" + content)


def plane(mean_a: Float[np.ndarray, " p"], mean_b: Float[np.ndarray, " p"]) -> Float64[np.ndarray, "2 p"]:
    """An orthonormal basis of the plane that two mean gradients span, the first axis along mean_a.

    Both means lie in it, so the lengths of their projections are their own; where they are parallel, the second axis
    is some direction orthogonal to them.
    """
    return _orthonormal([mean_a, mean_b, *np.eye(3, len(mean_a))], 2)


def space(*samples: Float[np.ndarray, "_ p"]) -> Float64[np.ndarray, "3 p"]:
    """An orthonormal basis of the space of the first figure: the means of one or two samples of gradients, completed
    by the directions, orthogonal to them, along which the gradients spread the most.
    """
    means = [v.mean(0, dtype=np.float64) for v in samples]
    flat = _orthonormal(means, len(means))
    around = np.concatenate([v.astype(np.float64) for v in samples])
    _, _, principal = np.linalg.svd(around - around @ flat.T @ flat, full_matrices=False)
    return _orthonormal([*flat, *principal, *np.eye(3, around.shape[1])], 3)


def project(v: Float[np.ndarray, "... p"], basis: Float[np.ndarray, "d p"]) -> Float64[np.ndarray, "... d"]:
    """The coordinates v.e_1 .. v.e_d of v in an orthonormal basis."""
    coordinates: np.ndarray = v.astype(np.float64) @ basis.T
    return coordinates


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
