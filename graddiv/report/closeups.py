"""Single examples: the gradients that an adversary sees at them, and the pictures it makes of them."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from graddiv.records import AttackRecord, GradientsRecord
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.grids import Grid
from graddiv.report.projections import plane, project
from graddiv.report.texts import bound, data_uri

MODES = ("fixed", "eot1", "eot")
MARKUP = 400
"""Bytes around a picture."""


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
    """Of the sample models at one example, if they were kept."""
    record = run.measured(GradientsRecord)
    if record is None or ident not in record.ids:
        return None
    gradients: np.ndarray = record.gradients[record.ids == ident][0].astype(np.float64)
    return gradients


def png(pixels: Float[np.ndarray, "c h w"]) -> str:
    """A grey or coloured image in [0, 1] as the data URI of a PNG."""
    c, h, w = pixels.shape
    rows = np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0).reshape(h, w * c)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", w, h, 8, 0 if c == 1 else 2, 0, 0, 0)
    unfiltered = b"".join(b"\0" + row.tobytes() for row in rows)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(unfiltered, 9)) + chunk(b"IEND", b"")
    return data_uri("image/png", b"\x89PNG\r\n\x1a\n" + content)
