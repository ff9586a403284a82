"""A plan for runs that have none: from explicit choices; where one is missing, the candidates are listed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import graddiv.report.page  # noqa: F401  registers what is drawn of each kind of measurement
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.recipes import title_of
from graddiv.records import AttackRecord, Record
from graddiv.report.comparison import ReportRun, is_eot
from graddiv.report.output import DRAWN_OF
from graddiv.report.plan import ATTACK_TABLE, Plan, PlannedItem, PlannedRun
from graddiv.runs import CHECKLIST

WHOLE_BOX = 1.0  #: every image lies within it: the radius of the checklist's unbounded attack, no row of a table

TABLE = "attacks-eps{:.6g}"  #: the name of a table of attacks
Attacks = Mapping[str, Mapping[str, AttackRecord]]  #: run -> file -> record


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
    """A report on these runs, of all their records that the choices allow."""
    runs = {path.resolve().name: ReportRun(path, "") for path in paths}
    if len(runs) < len(paths):
        raise GradDivError(f"{len(paths)} runs were named, some of them twice: name each once")
    files = {key: sorted(run.records.glob("*.record")) for key, run in runs.items()}  # those in folders are apart
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
    )


def _item(renderer: str, records: Mapping[str, tuple[str, ...]], name: str = "") -> PlannedItem:
    return PlannedItem(name=name or renderer, renderer=renderer, records=dict(records))


def _titles(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Runs share a title only if they differ in nothing but the seed; else it says in what, or which run it is."""
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
