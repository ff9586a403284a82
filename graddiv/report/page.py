"""report.html: verdict, tables, figures, checklist, recipe, cost and caveats on one page that needs no network.

All that a control can choose is in the page as HTML; scripts only show, hide and sort, so no value is formatted twice.
"""

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jaxtyping import Bool, Float, Int64

from graddiv import __version__, records, store
from graddiv.projections import plane, project
from graddiv.records import Flips, Record
from graddiv.report.output import NOT_APPLICABLE, Drawing, Table, image
from graddiv.report.study import RunFiles, Study, at_epsilon
from graddiv.report.style import BLACK, looks
from graddiv.report.tables import attack_table

SIZE = 3_000_000
"""The page stays below so many bytes: it can be mailed."""
ROOM_FOR_TEXT = 500_000
MARKUP = 400
"""Bytes around a picture."""
HEAVY = 100_000
"""Bytes from which a figure's SVG gives way to a smaller PNG."""
LONG = 60
"""Rows from which the numbers of a figure are left to its CSV."""
WIDE = 480
"""Pixels from which a figure has a row to itself."""
SIGNIFICANT = 0.05
SPREAD = 0.9
"""Below this ratio of concentrations the gradients count as spread."""
EXPLORED = "attacks-eps"
"""So begin the names of tables that are on the page anyway, one for each epsilon and n."""
MODES = ("fixed", "eot1", "eot")


def write(study: Study, out: Path, tables: Sequence[Table] = (), drawings: Sequence[Drawing] = ()) -> Path:
    """Write report.html into a directory."""
    store.make_directory(out)
    path = out / "report.html"
    store.write(path, render(study, tables, drawings).encode())
    return path


def render(study: Study, tables: Sequence[Table] = (), drawings: Sequence[Drawing] = ()) -> str:
    """The page as text; equal records give equal bytes."""
    grids, pairs = all_grids(study), find_pairs(study)
    default = default_grid(study, grids)
    compared = pairs[0] if pairs else study.runs[:2]
    figures = [_figure(drawing) for drawing in drawings]
    room = SIZE - ROOM_FOR_TEXT - sum(len(figure["source"]) for figure in figures)
    content = {
        "verdicts": [verdict(*pair, default) for pair in pairs] if default else [],
        "choices": [_choice(study, grid) for grid in grids],
        "tables": [_shown(table) for table in tables if not table.name.startswith(EXPLORED)],
        "examples": close_ups(study, compared, grids, default, room) if default else [],
        "figures": figures,
        "checklist": _checklist(study),
        "recipes": [_recipe(run) for run in study.runs],
        "differing": [_differing(*pair) for pair in pairs],
        "judging": _judging(study),
        "costs": [_cost(run) for run in study.runs],
        "caveats": _caveats(study, default),
    }
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "prose": _prose,
        "sentence": _sentence,
        "legible": legible,
        "count": _count,
        "duration": _duration,
    }
    return environment.from_string((files("graddiv.report") / "page.html.jinja").read_text()).render(
        **content,
        study=study,
        compared=compared,
        default=default,
        epsilons=[(epsilon, _epsilon(epsilon)) for epsilon in sorted({grid.epsilon for grid in grids})],
        ns=[(n, str(n)) for n in sorted({grid.n for grid in grids})],
        colours=[_colours(look.colour) for look in looks([run.method for run in study.runs])],
        square=["+graddiv" in run.method for run in study.runs],
        noun="digit" if "mnist" in study.data else "image",
        version=__version__,
    )


# What was run


class Grid(NamedTuple):
    """What every attack left at one epsilon and, for EOT, one n."""

    epsilon: float
    n: int
    """0 where no EOT was run."""
    records: dict[Path, list[Record]]
    """Of each run, clean images among them."""

    def labels(self, *runs: RunFiles) -> list[str]:
        """Attacks that were run on all these runs: Totals over different attacks do not compare."""
        found = dict.fromkeys(r.label for of_run in self.records.values() for r in of_run if r.label != "clean")
        return [label for label in found if all(self.of(run, label) for run in runs)]

    def of(self, run: RunFiles, label: str) -> list[Record]:
        """The records of one row, a record for each repeat."""
        return [record for record in self.records[run.path] if record.label == label]


def all_grids(study: Study) -> list[Grid]:
    """One for each epsilon and n of which there are records on the examples of most."""
    found = []
    for epsilon in study.epsilons:
        ns = sorted({r.n for run in study.runs for r in run.attacks(epsilon=epsilon, mode="eot")})
        for n in ns or [None]:
            of_runs = at_epsilon(study, epsilon, n)
            attacked = [r for records in of_runs for r in records if r.label != "clean"]
            if any(r.mode == "eot" or n is None for r in attacked):
                paths = (run.path for run in study.runs)
                found.append(Grid(epsilon, n or 0, dict(zip(paths, of_runs, strict=True))))
    return found


def default_grid(study: Study, grids: Sequence[Grid]) -> Grid | None:
    """At the epsilon of training if it was attacked there, with the most attacks: settled before results are seen."""
    trained = next((run.epsilon for run in study.runs if run.epsilon), 0.0)

    def rank(grid: Grid) -> tuple[bool, int, int, float]:
        return math.isclose(grid.epsilon, trained), sum(map(len, grid.records.values())), grid.n, -grid.epsilon

    return max(grids, key=rank, default=None)


def find_pairs(study: Study) -> list[tuple[RunFiles, RunFiles]]:
    """Each run with GradDiv beside the run of the same method without it."""
    bases = [(study.run(run.method.partition("+")[0]), run) for run in study.runs if "+graddiv" in run.method]
    return [(base, run) for base, run in bases if base is not None and base.data == run.data]


# The verdict


class Change(NamedTuple):
    """One quantity without and with GradDiv, and how sure it is that they differ."""

    name: str
    before: str
    after: str
    change: str
    sure: str


@dataclass(frozen=True)
class Verdict:
    """What changed between a run and the same with GradDiv, by how much, and how sure."""

    title: str
    headline: str
    sentences: list[str]
    changes: list[Change]


class Paired(NamedTuple):
    """Two runs on the same examples: shares of repeats in which each got an example right."""

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


def verdict(baseline: RunFiles, graddiv: RunFiles, grid: Grid) -> Verdict:
    """In words that follow from the numbers, whichever way they fall."""
    labels = grid.labels(baseline, graddiv)
    robust = _paired(grid, baseline, graddiv, labels)
    clean = _paired(grid, baseline, graddiv, ["clean"])
    rhos = _rho(baseline), _rho(graddiv)
    changes, sentences = [], []
    if robust:
        n = f", n = {grid.n}" if grid.n else ""
        changes.append(_accuracy_change(f"Robust accuracy at ε = {_epsilon(grid.epsilon)}", robust))
        over = f"cross-fitted Total over {len(labels)} attacks" if len(labels) > 1 else f"under {labels[0]}"
        sentences.append(
            f"On the same {len(robust.before)} test examples of {baseline.data}, at ε = {_epsilon(grid.epsilon)}{n}, "
            f"{baseline.title} keeps {changes[0].before} and {graddiv.title} {changes[0].after} ({over}). "
            + _weighed(robust)
        )
    if clean:
        changes.append(_accuracy_change("Clean accuracy", clean))
    if rhos[0] is not None and rhos[1] is not None:
        changes.append(_rho_change(baseline, graddiv, rhos[0], rhos[1]))
    return Verdict(graddiv.title, headline(rhos, robust), sentences, changes)


def _paired(grid: Grid, baseline: RunFiles, graddiv: RunFiles, labels: Sequence[str]) -> Paired | None:
    """The cross-fitted Total over these attacks of the examples that both runs were judged on."""
    first, second = _held(grid, baseline, labels), _held(grid, graddiv, labels)
    if first is None or second is None or first.data != second.data:
        return None
    _, a, b = np.intersect1d(first.ids, second.ids, return_indices=True)
    return Paired(first.shares[a], second.shares[b]) if len(a) else None


class Held(NamedTuple):
    """Examples, and the share of repeats in which each stood up to some attacks."""

    data: dict[str, Any]
    ids: Int64[np.ndarray, " b"]
    shares: Float[np.ndarray, " b"]


def _held(grid: Grid, run: RunFiles, labels: Sequence[str]) -> Held | None:
    """Over repeats in which all of them were run."""
    by_repeat = records.by_value([r for label in labels for r in grid.of(run, label)], "repeat")
    whole = [group for group in by_repeat.values() if len(group) == len(labels)]
    if not whole:
        return None
    verdicts = [records.cross_fitted_total(group) if len(group) > 1 else group[0]["correct"] for group in whole]
    return Held(whole[0][0].data, whole[0][0]["ids"], np.mean(verdicts, axis=0))


def _accuracy_change(name: str, paired: Paired) -> Change:
    lost, won, p = paired.flips
    change = f"{_signed(paired.points)} points"
    counts = f"{won} example{'' if won == 1 else 's'} won, {lost} lost; {_p(p)}"
    sure = counts if won + lost else "no example changed sides"
    return Change(name, f"{_percent(paired.before.mean())} %", f"{_percent(paired.after.mean())} %", change, sure)


def _weighed(paired: Paired) -> str:
    lost, won, p = paired.flips
    if lost + won == 0:
        return "Not one example changed sides."
    counts = f"GradDiv wins {won} and loses {lost} of them"
    if paired.clear:
        return f"{counts}: more than chance explains (sign test, {_p(p)})."
    return f"{counts}: chance alone can do this (sign test, {_p(p)}), so this study does not tell the two apart."


def _rho(run: RunFiles) -> float | None:
    """sqrt(max(0, mean cosine)): the concentration without the bias of a finite n; the training log's if need be."""
    for record in run.measured("concentration"):
        return float(np.sqrt(max(0.0, float(record["mean_cosine"][record["usable"]].mean()))))
    return float(np.sqrt(max(0.0, run.epochs[-1]["R_mean"]))) if run.epochs and "R_mean" in run.epochs[-1] else None


def _rho_change(baseline: RunFiles, graddiv: RunFiles, before: float, after: float) -> Change:
    name, change = "Gradient concentration ρ, debiased", f"{_signed(100 * (after / before - 1), 0)} %" if before else ""
    measured = [run.measured("concentration") for run in (baseline, graddiv)]
    if not all(measured):
        return Change(name, f"{before:.2f}", f"{after:.2f}", change, "from the last epoch of the training log")
    first, second = (found[0] for found in measured)
    _, a, b = np.intersect1d(first["ids"], second["ids"], return_indices=True)
    usable: Bool[np.ndarray, " b"] = first["usable"][a] & second["usable"][b]
    cosines = first["mean_cosine"][a][usable], second["mean_cosine"][b][usable]
    lower, p = int((cosines[1] < cosines[0]).sum()), records.flips(cosines[1] < cosines[0], cosines[0] < cosines[1]).p
    return Change(
        name, f"{before:.2f}", f"{after:.2f}", change, f"lower on {lower} of {len(cosines[0])} examples; {_p(p)}"
    )


def headline(rhos: tuple[float | None, float | None], robust: Paired | None) -> str:
    """What happened to the gradients, and what became of it."""
    before, after = rhos
    scattered = _scattered(before, after) if before and after is not None else None
    if robust is None:
        return f"{scattered}; no attack was run on both" if scattered else "Nothing was measured on both runs"
    if robust.clear:
        outcome = f"robust accuracy {'rises' if robust.points > 0 else 'falls'} by {abs(robust.points):.1f} points"
    else:
        outcome = f"robust accuracy moves by {_signed(robust.points)} points, which chance can explain"
    if not before or after is None:
        return f"With GradDiv, {outcome}"
    as_hoped = robust.clear and (after < SPREAD * before) == (robust.points > 0)
    return f"{scattered}, {'and' if as_hoped else 'but'} {outcome}"


def _scattered(before: float, after: float) -> str:
    if after > before / SPREAD:
        return "With GradDiv the gradients are more concentrated"
    if after > SPREAD * before:
        return "GradDiv leaves the gradients about as concentrated as they were"
    return f"GradDiv {'more than halves the concentration of' if after < before / 2 else 'spreads'} the gradients"


# Tables


def _shown(table: Table) -> dict[str, Any]:
    """A table of the report's; the Totals at its end stay there when it is sorted."""
    ends = len(table.rows)
    while ends and table.rows[ends - 1][0].startswith("Total"):
        ends -= 1
    columns = range(len(table.columns))
    words = {j for j in columns if not any(row[j][:1].isdigit() for row in table.rows)}
    return {
        "table": table,
        "words": words,
        "body": range(ends),
        "foot": range(ends, len(table.rows)),
        "tips": {},
        "marks": {},
        "n": 0,
    }


def _choice(study: Study, grid: Grid) -> dict[str, Any]:
    """The table of one grid, and behind each of our numbers the counts and the interval."""
    table = attack_table(study, grid.epsilon, grid.n or None)
    ours = [column for column in range(1, len(table.columns)) if column not in table.published]
    tips: dict[tuple[int, int], str] = {}
    marks: dict[int, list[dict[str, Any]]] = {row: [] for row in range(len(table.rows))}
    for i, numbers in enumerate(table.numbers):
        place, row = divmod(i, len(table.rows))
        found = dict(zip(table.number_columns, numbers, strict=True))
        if found["mean"] != "":
            tips[row, ours[place]] = _tip(study.runs[place], grid, found)
            bounds = {name: 100 * float(str(found[name])) for name in ("mean", "low", "high")}
            marks[row].append({"run": place, **bounds})
    return {**_shown(table), "epsilon": grid.epsilon, "n": grid.n, "tips": tips, "marks": marks}


def _tip(run: RunFiles, grid: Grid, found: Mapping[str, Any]) -> str:
    """What, how many, how sure: a line each."""
    examples = grid.records[run.path][-1].examples
    right = found["mean"] * examples
    texts = [
        f"{run.title}, {found['attack']}",
        f"{right:.4g} of {examples} right" + (f", mean of {found['repeats']} repeats" if found["repeats"] > 1 else ""),
        f"95 % interval {_percent(found['low'])} to {_percent(found['high'])}",
    ]
    if found["per_draw"] != "":
        texts.append(f"single sample models: {_percent(found['per_draw'])} % right")
    return "\n".join(texts)


# Examples up close


def close_ups(
    study: Study, compared: Sequence[RunFiles], grids: Sequence[Grid], default: Grid, room: int
) -> list[dict[str, Any]]:
    """As many of the first examples as there is room for: their gradients and their adversarial versions."""
    clean = next((found[0] for run in compared if (found := default.of(run, "clean"))), None)
    if clean is None or "images" not in clean.arrays or clean["images"].shape[1] not in (1, 3):
        return []
    widest = {grid.epsilon: grid for grid in grids} | {default.epsilon: default}
    examples: list[dict[str, Any]] = []
    for place, ident in enumerate(clean["ids"][: len(clean["images"])].tolist()):
        galleries = [_gallery(grid, compared, ident) for grid in widest.values()]
        shots = [shot for gallery in galleries for run in gallery["runs"] for row in run for shot in row["shots"]]
        room -= sum(len(shot["image"]) + MARKUP for shot in shots if shot)
        if room < 0 and examples:
            break
        examples.append(
            {
                "id": ident,
                "label": int(clean["labels"][place]),
                "image": png(clean["images"][place]),
                "scatter": scatter(study, compared, ident),
                "galleries": galleries,
            }
        )
    return examples


def _gallery(grid: Grid, compared: Sequence[RunFiles], ident: int) -> dict[str, Any]:
    """For each run a row for each attack, in it a picture for each mode."""
    of_runs = []
    for run in compared:
        first_repeat = reversed(grid.records[run.path])  # later ones are overwritten by earlier ones
        found = {(r.attack["name"] if r.attack else "clean", r.mode): r for r in first_repeat}
        names = dict.fromkeys(name for name, _ in reversed(found))
        of_runs.append(
            [{"name": name, "shots": [_shot(found.get((name, mode)), ident) for mode in MODES]} for name in names]
        )
    return {"epsilon": grid.epsilon, "text": _epsilon(grid.epsilon), "n": grid.n, "runs": of_runs}


def _shot(record: Record | None, ident: int) -> dict[str, Any] | None:
    """An image and what the ensemble and its models said of it."""
    if record is None or ident not in record["ids"][: len(record["images"])]:
        return None
    place = record["ids"].tolist().index(ident)
    return {
        "image": png(record["images"][place]),
        "label": record.label,
        "right": bool(record["correct"][place]),
        "models": int(record["right"][place].sum()),
        "of": record["right"].shape[1],
    }


def scatter(study: Study, compared: Sequence[RunFiles], ident: int) -> list[dict[str, Any]]:
    """Unit gradients of both runs, seen in the plane of their two means."""
    kept = []
    for run in compared:
        for record in run.measured("gradients"):
            if ident in record["ids"]:
                kept.append((run, record["gradients"][record["ids"] == ident][0].astype(np.float64)))
    if len(kept) != len(compared):
        return []
    basis = plane(kept[0][1].mean(0), kept[-1][1].mean(0))
    clouds = []
    for run, gradients in kept:
        mean = gradients.mean(0)
        clouds.append(
            {
                "run": study.runs.index(run),
                "title": run.title,
                "points": project(gradients, basis).round(3).tolist(),
                "mean": project(mean, basis).round(3).tolist(),
                "rho": float(np.linalg.norm(mean)),
                "n": len(gradients),
            }
        )
    return clouds


def png(pixels: Float[np.ndarray, "c h w"]) -> str:
    """A grey or coloured image in [0, 1] as the data URI of a PNG."""
    c, h, w = pixels.shape
    rows = np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0).reshape(h, w * c)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", w, h, 8, 0 if c == 1 else 2, 0, 0, 0)
    unfiltered = b"".join(b"\0" + row.tobytes() for row in rows)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(unfiltered, 9)) + chunk(b"IEND", b"")
    return _uri("image/png", b"\x89PNG\r\n\x1a\n" + content)


# Figures, checklist, recipe, cost, caveats


def _figure(drawing: Drawing) -> dict[str, Any]:
    kind, content = "image/svg+xml", image(drawing, "svg")
    if len(content) > HEAVY:
        kind, content = min((kind, content), ("image/png", image(drawing, "png")), key=lambda form: len(form[1]))
    width, height = (round(96 * inches) for inches in drawing.figure.get_size_inches())
    return {
        "drawing": drawing,
        "source": _uri(kind, content),
        "width": width,
        "height": height,
        "wide": width > WIDE,
        "numbers": len(drawing.rows) <= LONG,
    }


def _checklist(study: Study) -> list[dict[str, Any]]:
    """Items with what each run's checklist says of them."""
    of_runs = [(run, {item["name"]: item for item in run.checklist or []}) for run in study.runs]
    names = dict.fromkeys(name for _, items in of_runs for name in items)
    return [{"name": name, "runs": [(run.title, items.get(name)) for run, items in of_runs if items]} for name in names]


def _recipe(run: RunFiles) -> dict[str, Any]:
    log = store.read_log(run.path / "metrics.jsonl")
    start = next((line for line in log if line["event"] == "start"), {})
    recipe = run.path / "recipe.toml"
    return {
        "title": run.title,
        "method": run.method,
        "seed": run.experiment["seed"],
        "toml": recipe.read_text() if recipe.exists() else None,
        "versions": start.get("versions", {}),
        "parameters": next((str(r.parameters) for r in run.attacks() if "parameters" in r.description), None),
    }


def _differing(baseline: RunFiles, graddiv: RunFiles) -> dict[str, Any]:
    """What the recipes of a pair do not share."""
    found = store.differences(baseline.experiment, graddiv.experiment)
    return {"titles": (baseline.title, graddiv.title), "keys": [d for d in found if d[0] != "method"]}


def _judging(study: Study) -> list[tuple[str, str]]:
    """How the records were made: what is needed to make them again."""
    found = [record for run in study.runs for record in run.attacks()]
    if not found:
        return []

    def values(name: str) -> str:
        return ", ".join(str(value) for value in sorted({r.description[name] for r in found}))

    data = {f"{r.data['name']}, {r.data['split']} split, sha256 {r.data['sha256'][:12]}" for r in found}
    return [
        ("Data", "; ".join(sorted(data))),
        ("Examples", values("examples")),
        ("Models of the ensemble that judges", values("n_ensemble")),
        ("Seed of attacks and ensembles", values("seed")),
        ("Repeats", str(len({r.repeat for r in found}))),
    ]


def _cost(run: RunFiles) -> dict[str, Any]:
    """Passes and draws by attack, and how fast it trained."""
    speeds = [epoch["images_per_second"] for epoch in run.epochs if "images_per_second" in epoch]
    examples = run.experiment["data"].get("examples")
    rows: dict[str, list[int]] = {}
    for record in run.attacks():
        spent = [int(record[f"cost_{name}"].sum()) for name in ("forwards", "backwards", "draws")]
        rows[record.label] = [a + b for a, b in zip(rows.get(record.label, [0, 0, 0]), spent, strict=True)]
    return {
        "title": run.title,
        "speed": float(np.mean(speeds)) if speeds else None,
        "epochs": len(speeds),
        "seconds": sum(examples / speed for speed in speeds) if speeds and examples else None,
        "rows": rows,
        "total": [sum(column) for column in zip(*rows.values(), strict=True)] if rows else [0, 0, 0],
    }


def _caveats(study: Study, default: Grid | None) -> list[tuple[str, str]]:
    """What these numbers do not show, with the numbers that matter to it."""
    found = [
        (
            "A finite set of attacks proves no robustness.",
            "Every accuracy under attack is an upper bound: a stronger attack can only lower it.",
        ),
        (
            "Scale.",
            f"Ours were obtained at scale {study.scale}. The paper's values, where they stand beside ours, come from "
            "its full training and test sets: compare the pattern, not the digits.",
        ),
    ]
    attacked = [r for of_run in default.records.values() for r in of_run if r.label != "clean"] if default else []
    if attacked:
        examples, repeats = attacked[0].examples, len({r.repeat for r in attacked})
        low, high = records.wilson(examples / 2, examples)
        found += [
            (
                "Few examples.",
                f"With {examples}, an accuracy of 50 % has a 95 % interval from {_percent(low)} to {_percent(high)}; "
                "the verdict therefore compares the runs example by example.",
            ),
            (
                "Repeats.",
                f"{repeats} with independent draws: ± is the standard deviation over them, and says nothing of the "
                "choice of examples."
                if repeats > 1
                else "One only, so the spread over draws of sample models is not known.",
            ),
        ]
    seeds = ", ".join(str(seed) for seed in sorted({run.experiment["seed"] for run in study.runs}))
    return [
        *found,
        (
            "One training run each.",
            f"Each run was trained once (seed {seeds}): how far two trainings of one method differ is in no interval "
            "and no p-value here.",
        ),
        (
            "Total is pessimistic by chance.",
            "A minimum over noisy verdicts is too low; the cross-fitted Total chooses the worst attack for each "
            "example on one ensemble and scores it on another. p-values are of single comparisons.",
        ),
        (
            "Scattered gradients are not robustness.",
            "They make an attack that averages few of them noisier; that no good direction exists does not follow. "
            "ρ is shown debiased, since its plain estimate depends on the number of draws.",
        ),
    ]


# Texts


def _colours(colour: str) -> tuple[str, str]:
    """Of a method on white and on black."""
    return colour, "#e8e8e8" if colour == BLACK else colour


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _epsilon(value: float) -> str:
    """8/255 for colour images, as papers write it; 0.3 as it is."""
    whole = round(255 * value)
    return f"{whole}/255" if value < 0.1 and whole and abs(255 * value - whole) < 1e-3 else f"{value:.4g}"


def legible(value: object) -> str:
    """A number with four digits, whatever holds it; other values as JSON has them."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOT_APPLICABLE}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {legible(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(legible(part) for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _sentence(text: str) -> str:
    return _prose(text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else "."))


def _prose(text: str) -> str:
    """Text with EOT¹ as it is spoken of, and no line break between a number and what belongs to it."""
    for breakable in (" %", " = ", " < ", " ± "):
        text = text.replace(breakable, breakable.replace(" ", "\u00a0"))
    return text.replace("EOT^1", "EOT¹")
