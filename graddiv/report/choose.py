"""A plan for runs that have none: from explicit choices, and never by guessing.

Where records differ in a setting that a table must have one value of, the candidates are listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.recipes import title
from graddiv.records import AttackRecord, MeasurementRecord, Record
from graddiv.records.record import PILOTS
from graddiv.report.comparison import ReportRun, is_eot
from graddiv.report.plan import Plan, PlannedItem, PlannedRun
from graddiv.report.renderers import ATTACK_TABLE
from graddiv.runs import CHECKLIST, Run

FIGURES_OF = {
    "concentration": ("kappa",),
    "gradient-noise": ("rho-attacked",),
    "nearby": ("rho-nearby",),
    "gradients": ("scatter", "cosines", "sphere"),
    "loss-increase": ("loss-increase",),
    "rotation": ("rotation",),
    "transfer": ("transfer",),
    "boundary": ("boundary",),
}
"""Figures that are drawn of each kind of measurement."""

WHOLE_BOX = 1.0
"""The radius within which every image lies: that of the checklist's unbounded attack, which is no row of a table."""


@dataclass(frozen=True)
class Choices:
    """Values of settings in which records of one attack may differ; None: not chosen."""

    epsilon: float | None = None
    """The radius of the table by which runs are compared."""
    n: int | None = None
    m: int | None = None
    restarts: int | None = None
    examples: int | None = None

    def allow(self, record: AttackRecord) -> bool:
        """Whether the record fits all choices that concern it."""
        if self.examples is not None and record.examples != self.examples:
            return False
        if record.is_clean:
            return True
        if self.n is not None and record.mode == "eot" and record.n != self.n:
            return False
        one_step = record.label.endswith("FGSM")
        return (self.m in (None, record.m) or one_step) and self.restarts in (None, record.restarts)


def plan_for(paths: Sequence[Path], choices: Choices) -> Plan:
    """A report on these runs, of all their records that the choices allow."""
    runs = {_key(path): path for path in paths}
    if len(runs) < len(paths):
        raise GradDivError(f"{len(paths)} runs were named, some of them twice: name each once")
    found = {key: _read(path) for key, path in runs.items()}
    titles = _titles({key: ReportRun(path, "").experiment for key, path in runs.items()})
    attacks = {key: _attacks(records, choices) for key, records in found.items()}
    radii = sorted({r.epsilon for of_run in attacks.values() for r in of_run.values() if not r.is_clean})
    items = [_table(attacks, epsilon) for epsilon in radii]
    items += _curve(runs, attacks, choices)
    items += _measured(found, choices)
    random = [key for key, path in runs.items() if ReportRun(path, "").random]
    if random:
        items.append(_item("training-concentration", dict.fromkeys(random, ())))
    if all(Run(path).checklist_file.exists() for path in paths):
        items.append(_item("checklist", dict.fromkeys(runs, (CHECKLIST,))))
    return Plan(
        title=", ".join(titles.values()),
        scale=", ".join(dict.fromkeys(ReportRun(path, "").experiment.scale for path in paths)),
        runs={key: PlannedRun(path=str(path), title=titles[key]) for key, path in runs.items()},
        items=tuple(items),
        headline=_headline(radii, choices, ReportRun(paths[0], "").epsilon),
    )


def _titles(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Runs share a title only if they differ in nothing but the seed; else it says in what they differ."""
    names = {key: title(e.method) for key, e in experiments.items()}
    settings = {key: _settings(e) for key, e in experiments.items()}

    def titled(key: str) -> str:
        alike = [settings[other] for other, name in names.items() if name == names[key]]
        changed = {place: mine for other in alike for place, mine, _ in store.differences(settings[key], other)}
        if len(changed) > MANY:
            return f"{names[key]}, {key}"
        values = {place.rpartition(".")[2]: mine for place, mine in changed.items()}
        shown = [
            f"{place} = {mine:g}" if isinstance(mine, float) else f"{place} = {mine}" for place, mine in values.items()
        ]
        return ", ".join([names[key], *shown])

    return {key: titled(key) for key in names}


MANY = 2
"""Settings, beyond which a run's own name tells more than a list of them."""


def _settings(experiment: Experiment) -> dict[str, object]:
    """What makes a method: all settings but the seed, and of the network it starts from whether there is one."""
    values = experiment.dump()
    values["network"]["from"] = values["network"]["from"] is not None
    stages = {str(i): stage for i, stage in enumerate(values["stages"])}  # by number, so that they are compared
    return {**values, "stages": stages, "seed": None}


def _key(path: Path) -> str:
    return path.resolve().name


def _read(path: Path) -> dict[str, Record]:
    directory = Run(path).records
    paths = [path.relative_to(directory) for path in sorted(directory.rglob("*.record"))]
    found = {str(path): Record.load(directory / path) for path in paths if PILOTS not in path.parts}
    if not found:
        raise GradDivError(f"there are no records of {path}: 'graddiv attack {path}' makes them")
    return found


def _attacks(records: Mapping[str, Record], choices: Choices) -> dict[str, AttackRecord]:
    """The allowed records of attacks by file, once each row has one setting."""
    chosen = {
        name: r
        for name, r in records.items()
        if isinstance(r, AttackRecord) and choices.allow(r) and r.epsilon < WHOLE_BOX
    }
    examples = {(r.examples, r.data.sha256) for r in chosen.values()}
    if len(examples) > 1:
        counts = ", ".join(str(count) for count, _ in sorted(examples))
        raise GradDivError(f"the records are of different sets of {counts} examples: choose one with --examples")
    rows: dict[tuple[str, float], dict[tuple[int, int, int], str]] = {}
    for r in chosen.values():
        rows.setdefault((r.label, r.epsilon), {})[r.n, r.m, r.restarts] = f"n {r.n}, m {r.m}, restarts {r.restarts}"
    for (label, epsilon), variants in rows.items():
        if len(variants) > 1:
            listed = "; ".join(variants[key] for key in sorted(variants))
            raise GradDivError(
                f"{label} at epsilon {epsilon:.4g} was run with {listed}: choose one with --n, --m or --restarts"
            )
    return chosen


def _table(attacks: Mapping[str, Mapping[str, AttackRecord]], epsilon: float) -> PlannedItem:
    records = {
        run: tuple(name for name, r in of_run.items() if r.is_clean or r.epsilon == epsilon)
        for run, of_run in attacks.items()
    }
    return PlannedItem(name=_table_name(epsilon), renderer=ATTACK_TABLE, records=records)


def _table_name(epsilon: float) -> str:
    return f"attacks-eps{epsilon:.6g}"


def _curve(
    runs: Mapping[str, Path], attacks: Mapping[str, Mapping[str, AttackRecord]], choices: Choices
) -> list[PlannedItem]:
    """Accuracy against epsilon, if EOT-PGD was run at several.

    A curve is of one n: of EOT^1, which is EOT of one model, only where n = 1 is chosen or nothing else was run.
    """
    labels = {r.label for of_run in attacks.values() for r in of_run.values()}
    mode = "eot1" if choices.n == 1 or "EOT-PGD" not in labels else "eot"
    records, radii = {}, set()
    for key, of_run in attacks.items():
        run = ReportRun(runs[key], "")
        swept = {name: r for name, r in of_run.items() if is_eot(run, r, "PGD") and (r.mode == mode or not run.random)}
        radii |= {r.epsilon for r in swept.values()}
        records[key] = tuple(name for name, r in of_run.items() if r.is_clean or name in swept)
    return [_item("accuracy-epsilon", records)] if len(radii) > 1 else []


def _measured(found: Mapping[str, Mapping[str, Record]], choices: Choices) -> list[PlannedItem]:
    """Figures of measurements; of those at several radii the chosen one."""
    items = []
    for kind, renderers in FIGURES_OF.items():
        of_runs = {run: _of_kind(records, kind, choices) for run, records in found.items()}
        of_runs = {run: names for run, names in of_runs.items() if names}
        items += [_item(renderer, of_runs) for renderer in renderers if of_runs]
    return items


def _of_kind(records: Mapping[str, Record], kind: str, choices: Choices) -> tuple[str, ...]:
    named: dict[str, list[str]] = {}
    for name, record in records.items():
        if isinstance(record, MeasurementRecord) and record.kind == kind:
            apart = [part for part in record.named_by if part != "epsilon"]
            named.setdefault(str([record.value(part) for part in apart]), []).append(name)
    chosen = []
    for names in named.values():
        at = [name for name in names if choices.epsilon in (None, records[name].description.get("epsilon"))] or names
        if len(at) > 1:
            radii = ", ".join(f"{records[name].value('epsilon'):.4g}" for name in at)
            raise GradDivError(f"{kind} was measured at the radii {radii}: choose one with --epsilon")
        chosen += at
    return tuple(chosen)


def _item(renderer: str, records: Mapping[str, tuple[str, ...]]) -> PlannedItem:
    return PlannedItem(name=renderer, renderer=renderer, records=dict(records))


def _headline(radii: Sequence[float], choices: Choices, trained_at: float | None) -> str | None:
    wanted = choices.epsilon if choices.epsilon is not None else trained_at
    if not radii:
        return None
    if wanted in radii:
        return _table_name(float(wanted or 0.0))
    if choices.epsilon is None and len(radii) == 1:
        return _table_name(radii[0])
    listed = ", ".join(f"{radius:.4g}" for radius in radii)
    raise GradDivError(f"the runs were attacked at epsilon {listed}: choose one to compare them at, with --epsilon")
