"""From a plan to files: its tables and figures, and report.html, which holds them all and needs no network.

Runs without a plan get one from explicit choices; where one is missing, the candidates are listed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import graddiv.report.study
import graddiv.report.tables  # noqa: F401  they register what they draw
from graddiv import store
from graddiv.data import SOURCES
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.recipes import title_of
from graddiv.records import AttackRecord, Record, wilson
from graddiv.report.closeups import Grid, close_ups, crossing, verdict
from graddiv.report.comparison import Comparison, ReportRun, is_eot, titles
from graddiv.report.figures import accuracy, gradients, matrices, mechanism  # noqa: F401  these register, too
from graddiv.report.output import DRAWN_OF, RENDERERS, Figure, Table, data_uri, fill, image, save
from graddiv.report.plan import ATTACK_TABLE, Plan, PlannedItem, PlannedRun, PlanReader
from graddiv.report.published import TRAINED_AT
from graddiv.report.style import looks
from graddiv.runs import CHECKLIST

LEAD = "accuracy-epsilon"  #: draws the figure that stands first on a page; of several such figures the first one
SIZE = 3_000_000  #: bytes that the page stays below: it can be mailed
ROOM_FOR_TEXT = 500_000  #: bytes that no picture may take
HEAVY = 100_000  #: bytes from which a figure's SVG gives way to a smaller PNG
LONG = 60  #: rows from which the numbers of a figure are left to its CSV
WIDE = 480  #: pixels from which a figure has a row to itself
WHOLE_BOX = 1.0  #: every image lies within it: the radius of the checklist's unbounded attack, no row of a table
TABLE = "attacks-eps{:.6g}"  #: the name of a table of attacks
Attacks = Mapping[str, Mapping[str, AttackRecord]]  #: run -> file -> record


def render(plan: Plan, directory: Path) -> tuple[Path, list[Table]]:
    """Draw what the plan names and store it beside the report; return the page and the tables."""
    reader, grids, drawn = PlanReader(plan), dict[str, Grid](), dict[str, Table | Figure]()
    for item in plan.items:
        comparison = reader.comparison(item)
        made = RENDERERS[item.renderer](comparison)
        title = f"{item.about}: {made.title}" if item.about else made.title
        drawn[item.name] = replace(made, name=item.name, title=title)
        if item.renderer == ATTACK_TABLE:
            grids[item.name] = Grid(comparison, made)
    if plan.headline is not None and plan.headline not in grids:
        tables_of_attacks = ", ".join(grids) or "none, for there is no table of attacks"
        raise GradDivError(f"the headline of the plan is {plan.headline!r}, expected one of {tables_of_attacks}")
    for what in drawn.values():
        save(what, directory)
    tables = {name: what for name, what in drawn.items() if isinstance(what, Table)}
    figures = {name: what for name, what in drawn.items() if isinstance(what, Figure)}
    shown_elsewhere = {item.name for item in plan.items if item.renderer in (ATTACK_TABLE, "checklist")}
    lead = next((item for item in plan.items if item.renderer == LEAD), None)
    html = text_of(
        reader.everything(),
        list(grids.values()),
        grids[plan.headline] if plan.headline else None,
        lead=figures.pop(lead.name) if lead else None,
        curve=reader.comparison(lead) if lead else None,
        tables=[table for name, table in tables.items() if name not in shown_elsewhere],
        figures=list(figures.values()),
    )
    plan.save(directory)
    store.write(directory / "report.html", html.encode())
    return directory / "report.html", list(tables.values())


def text_of(
    comparison: Comparison, grids: Sequence[Grid], default: Grid | None, tables: Sequence[Table] = (),
    figures: Sequence[Figure] = (), lead: Figure | None = None, curve: Comparison | None = None,
) -> str:  # fmt: skip
    """The page; equal records give equal bytes.

    comparison: all runs with all records.  grids: the tables of attacks that a reader chooses among.
    default: the one by which runs are compared in words.  tables, figures: the others.
    lead: accuracy against epsilon, which stands first.  curve: what that figure is drawn from.
    """
    whole = {run: run for run in comparison.runs}  # those of a grid have the records of its table only
    pairs = [(whole[a], whole[b]) for a, b in (default.comparison if default else comparison).pairs]
    compared = pairs[0] if pairs else comparison.runs[:2]
    names = titles(comparison.runs)
    shown_lead, shown = lead and shown_figure(lead), [shown_figure(figure) for figure in figures]
    room = SIZE - ROOM_FOR_TEXT - sum(len(figure["source"]) for figure in (shown_lead, *shown) if figure)
    differing = [(a.title, b.title, store.differences(a.experiment.dump(), b.experiment.dump())) for a, b in pairs]
    return fill(
        "page.html.jinja",
        comparison=comparison,
        compared=compared,
        default=default,
        verdicts=[(names[b], verdict(a, b, default)) for a, b in pairs] if default else [],
        crossing=crossing(curve) if curve else None,
        choices=[_choice(comparison, grid) for grid in grids],
        tables=[shown_table(table) for table in tables],
        examples=close_ups(comparison, compared, grids, default, room) if default else [],
        lead=shown_lead,
        figures=shown,
        names=names,
        differing=list({str(found): found for found in differing}.values()),
        costs=[(run, _spent(run)) for run in comparison.runs],
        wilson=wilson,
        titles=[run.title for run in comparison.runs],
        attacked=sorted({_place(comparison, run) for grid in grids for run in grid.comparison.runs}),
        colours=[look.colour for look in looks([run.method for run in comparison.runs])],
        square=["+graddiv" in run.method for run in comparison.runs],
    )


def shown_table(table: Table) -> dict[str, Any]:
    """A table of the report's; the Totals at its end stay there when it is sorted."""
    foot = [i for i, row in enumerate(table.rows) if row[0].startswith("Total")]
    body = [i for i in range(len(table.rows)) if i not in foot]
    words = {j for j in range(len(table.columns)) if not any(row[j][:1].isdigit() for row in table.rows)}
    return {"table": table, "words": words, "body": body, "foot": foot, "tips": {}, "marks": {}, "n": 0}


def _choice(comparison: Comparison, grid: Grid) -> dict[str, Any]:
    """The table of one grid, and behind each of our numbers the counts and the interval."""
    table, groups = grid.table, grid.comparison.groups
    ours = [column for column in range(1, len(table.columns)) if column not in table.published]
    tips: dict[tuple[int, int], dict[str, Any]] = {}
    marks: dict[int, list[dict[str, Any]]] = {row: [] for row in range(len(table.rows))}
    for i, numbers in enumerate(table.numbers):
        place, row = divmod(i, len(table.rows))
        found = dict(zip(table.number_columns, numbers, strict=True))
        if found["mean"] != "":
            first, trainings = groups[place][0], len(groups[place])
            told = {"title": first.title, "trainings": trainings, "examples": grid.records(first)[-1].examples}
            tips[row, ours[place]] = found | told
            bounds = {name: 100 * float(str(found[name])) for name in ("mean", "low", "high")}
            marks[row].append({"run": _place(comparison, first), **bounds})
    return {**shown_table(table), "epsilon": grid.epsilon, "n": grid.n, "tips": tips, "marks": marks}


def _place(comparison: Comparison, run: ReportRun) -> int:
    """The index of the first run of the same method, whose look all trainings share."""
    return [other.title for other in comparison.runs].index(run.title)


def shown_figure(drawing: Figure) -> dict[str, Any]:
    """A figure as the page holds it: inside, as the smaller of SVG and PNG."""
    kind, content = "image/svg+xml", image(drawing, "svg")
    if len(content) > HEAVY:
        kind, content = min((kind, content), ("image/png", image(drawing, "png")), key=lambda form: len(form[1]))
    width, height = (round(96 * inches) for inches in drawing.figure.get_size_inches())
    size = {"width": width, "height": height, "wide": width > WIDE}
    return {"drawing": drawing, "source": data_uri(kind, content), "numbers": len(drawing.rows) <= LONG, **size}


def _spent(run: ReportRun) -> dict[str, list[int]]:
    """Forward passes, backward passes and draws by attack, over all its records."""
    rows: dict[str, np.ndarray] = {}
    for r in run.attacks:
        spent = np.array([cost.sum() for cost in (r.cost_forwards, r.cost_backwards, r.cost_draws)])
        rows[r.label] = rows.get(r.label, 0) + spent
    return {label: spent.tolist() for label, spent in rows.items()}


@dataclass(frozen=True)
class Choices:
    """Values of settings in which records of one attack may differ; None: not chosen."""

    epsilon: float | None = None  #: the radius of the table by which runs are compared
    n: int | None = None
    m: int | None = None
    restarts: int | None = None
    examples: int | None = None

    def allow(self, record: AttackRecord) -> bool:
        """Whether the record fits all choices that concern it."""
        concerning = ["examples"] if record.is_clean else ["examples", "restarts"]
        concerning += ["n"] if record.mode == "eot" else []
        concerning += ["m"] if not record.is_clean and not record.label.endswith("FGSM") else []
        return all(getattr(self, name) in (None, record.value(name)) for name in concerning)


def plan_for(paths: Sequence[Path], choices: Choices) -> Plan:
    """The plan of a report on these runs, with all records that the choices allow."""
    runs = {path.resolve().name: ReportRun(path, "") for path in paths}
    if len(runs) < len(paths):
        raise GradDivError(f"{len(paths)} runs were named, some of them twice: name each once")
    files = {key: sorted(run.records.glob("*.record")) for key, run in runs.items()}  # not those in folders below
    for key, run in runs.items():
        if not files[key]:
            raise GradDivError(f"there are no records of {run.path}: 'graddiv attack {run.path}' makes them")
    found = {key: {path.name: Record.load(path) for path in paths} for key, paths in files.items()}
    titles = _titles({key: run.experiment for key, run in runs.items()})
    attacks = {key: _attacks(records, choices) for key, records in found.items()}
    radii = sorted({r.epsilon for of_run in attacks.values() for r in of_run.values() if not r.is_clean})
    items = []
    for epsilon in radii:  # the records of this radius, clean images included
        at = {k: tuple(n for n, r in of.items() if r.is_clean or r.epsilon == epsilon) for k, of in attacks.items()}
        items.append(_item(ATTACK_TABLE, at, TABLE.format(epsilon)))
    items += _curve(runs, attacks, choices)
    for kind, renderers in {**DRAWN_OF, "rotation": ["rotation"]}.items():
        measured = {key: names for key, records in found.items() if (names := _of_kind(records, kind, choices))}
        items += [_item(renderer, measured) for renderer in renderers if measured]
    random = [key for key, run in runs.items() if run.random]
    if random:
        items.append(_item("training-concentration", dict.fromkeys(random, ())))
    if all(run.checklist_file.exists() for run in runs.values()):
        items.append(_item("checklist", dict.fromkeys(runs, (CHECKLIST,))))
    return Plan(
        title=", ".join(titles.values()),
        scale=", ".join(dict.fromkeys(run.experiment.scale for run in runs.values())),
        runs={key: PlannedRun(path=str(run.path), title=titles[key]) for key, run in runs.items()},
        items=tuple(items),
        headline=_headline(radii, choices, next(iter(runs.values())).epsilon),
        papers=all(_as_the_papers(run, attacks[key].values()) for key, run in runs.items()),
    )


def _as_the_papers(run: ReportRun, records: Iterable[AttackRecord]) -> bool:
    """Whether the records are of the paper's own data, and of all its test images."""
    if run.data not in TRAINED_AT or run.experiment.data.file is not None:
        return False
    whole = run.data, "test", SOURCES[run.data].sizes["test"]
    return all((r.data.name, r.data.split, r.examples) == whole for r in records)


def _item(renderer: str, records: Mapping[str, tuple[str, ...]], name: str = "") -> PlannedItem:
    return PlannedItem(name=name or renderer, renderer=renderer, records=dict(records))


def _titles(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Titles of runs; runs share one only if they differ in nothing but the seed."""
    names = {key: title_of(e) for key, e in experiments.items()}
    methods = {}  # all settings but the seed, and of the network it starts from whether there is one
    for key, experiment in experiments.items():
        methods[key] = {**experiment.dump(), "seed": None}
        methods[key]["network"]["from"] = methods[key]["network"]["from"] is not None
    told = {key: all(methods[key] == methods[k] for k in names if names[k] == names[key]) for key in names}
    return {key: name if told[key] else f"{name}, {key}" for key, name in names.items()}


def _attacks(records: Mapping[str, Record], choices: Choices) -> dict[str, AttackRecord]:
    """The allowed records of attacks by file, once each row has one setting."""
    found = {name: r for name, r in records.items() if isinstance(r, AttackRecord)}
    chosen = {name: r for name, r in found.items() if choices.allow(r) and r.epsilon < WHOLE_BOX}
    examples = {(r.examples, r.data.sha256) for r in chosen.values()}
    if len(examples) > 1:
        counts = ", ".join(str(count) for count, _ in sorted(examples))
        raise GradDivError(f"the records are of different sets of {counts} examples: choose one with --examples")
    rows: dict[tuple[str, float], set[tuple[int, int, int]]] = {}
    for r in chosen.values():
        rows.setdefault((r.label, r.epsilon), set()).add((r.n, r.m, r.restarts))
    for (label, epsilon), variants in rows.items():
        if len(variants) > 1:
            listed = "; ".join(f"n {n}, m {m}, restarts {restarts}" for n, m, restarts in sorted(variants))
            told = f"{label} at epsilon {epsilon:.4g} was run with {listed}"
            raise GradDivError(f"{told}: choose one with --n, --m or --restarts")
    return chosen


def _curve(runs: Mapping[str, ReportRun], attacks: Attacks, choices: Choices) -> list[PlannedItem]:
    """Accuracy against epsilon, if EOT-PGD was run at several.

    A curve is of one n: of EOT^1, which is EOT of one model, only where n = 1 is chosen or nothing else was run.
    """
    labels = {r.label for of_run in attacks.values() for r in of_run.values()}
    mode = "eot1" if choices.n == 1 or "EOT-PGD" not in labels else "eot"
    records, radii = {}, set()
    for key, of_run in attacks.items():
        run = runs[key]
        swept = {name: r for name, r in of_run.items() if is_eot(run, r, "PGD") and (r.mode == mode or not run.random)}
        radii |= {r.epsilon for r in swept.values()}
        records[key] = tuple(name for name, r in of_run.items() if r.is_clean or name in swept)
    return [_item("accuracy-epsilon", records)] if len(radii) > 1 else []


def _of_kind(records: Mapping[str, Record], kind: str, choices: Choices) -> tuple[str, ...]:
    """The records of a kind, one for each of its settings but the radius; of several radii the chosen one."""
    named: dict[str, list[str]] = {}
    for name, record in records.items():
        if record.kind == kind:
            apart = [record.value(part) for part in record.named_by if part != "epsilon"]
            named.setdefault(str(apart), []).append(name)
    chosen = []
    for names in named.values():
        at = [name for name in names if choices.epsilon in (None, records[name].description.get("epsilon"))] or names
        if len(at) > 1:
            radii = ", ".join(f"{records[name].value('epsilon'):.4g}" for name in at)
            raise GradDivError(f"{kind} was measured at the radii {radii}: choose one with --epsilon")
        chosen += at
    return tuple(chosen)


def _headline(radii: Sequence[float], choices: Choices, trained_at: float | None) -> str | None:
    wanted = choices.epsilon if choices.epsilon is not None else trained_at
    if wanted not in radii and choices.epsilon is None and len(radii) == 1:
        wanted = radii[0]
    if not radii or wanted in radii:
        return TABLE.format(wanted) if radii else None
    listed = ", ".join(f"{radius:.4g}" for radius in radii)
    raise GradDivError(f"the runs were attacked at epsilon {listed}: choose one to compare them at, with --epsilon")
