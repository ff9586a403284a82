"""What a report is made from: the files of some runs, read without torch."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from graddiv import store
from graddiv.experiment import DEFENSES
from graddiv.records import Record, Summary, curve, summary
from graddiv.runs import Run

SETTINGS = ("epsilon", "n", "m", "restarts", "examples")
"""What tells attack records of one label apart, but for repeats."""

WHOLE_BOX = 1.0
"""The bound within which every image lies: the checklist's unbounded attack."""


@dataclass(frozen=True)
class RunFiles:
    """One run directory: its experiment, the log of its training and all records made of it."""

    path: Path
    title: str
    """The method's name in tables."""

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """The settings it was trained with."""
        found: dict[str, Any] = store.read_json(Run(self.path).experiment_file)
        return found

    @property
    def method(self) -> str:
        """Such as adv-bnn+graddiv."""
        return str(self.experiment["method"])

    @property
    def data(self) -> str:
        """The data set."""
        return str(self.experiment["data"]["name"])

    @property
    def random(self) -> bool:
        """Whether the network has noise; one without knows no EOT."""
        return any(self.experiment.get(section) is not None for section in DEFENSES)

    @property
    def lam(self) -> float:
        """The weight of GradDiv in training; 0 without it."""
        return float((self.experiment.get("graddiv") or {}).get("lam", 0.0))

    @property
    def epsilon(self) -> float | None:
        """The bound of the inner adversary in training."""
        adversary = self.experiment.get("adversary")
        return float(adversary["epsilon"]) if adversary else None

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """What the log says of each epoch, from epoch 0, before training."""
        return Run(self.path).epochs

    @cached_property
    def records(self) -> list[Record]:
        """All records, of attacks and of measurements."""
        return [Record.load(path) for path in sorted(Run(self.path).records.rglob("*.record"))]

    def attacks(self, **wanted: Any) -> list[Record]:
        """Records of attacks (and of clean images) whose description has these values."""
        found = [r for r in self.records if "correct" in r.arrays]
        return [r for r in found if all(r.description.get(key) == value for key, value in wanted.items())]

    def measured(self, kind: str, **wanted: Any) -> list[Record]:
        """Records of one kind of measurement: concentration, gradients, transfer, ..."""
        found = [r for r in self.records if r.description.get("kind") == kind]
        return [r for r in found if all(r.description.get(key) == value for key, value in wanted.items())]

    @property
    def clean(self) -> Summary | None:
        """The accuracy without an attack, if it was measured."""
        found = self.attacks(label="clean")
        return summary([r["correct"] for r in found]) if found else None

    @cached_property
    def checklist(self) -> list[dict[str, Any]] | None:
        """The items of the checklist, if it was gone through."""
        path = Run(self.path).checklist_file
        return list(store.read_json(path)["items"]) if path.exists() else None


@dataclass(frozen=True)
class Study:
    """The runs that one table, figure or page compares, in its order of methods."""

    runs: tuple[RunFiles, ...]
    scale: str
    """At which scale ours were obtained: stands beside every number of ours."""

    def run(self, method: str) -> RunFiles | None:
        """The run of a method, if there is one."""
        return next((run for run in self.runs if run.method == method), None)

    @property
    def data(self) -> str:
        """The data set of its runs."""
        return self.runs[0].data

    @property
    def epsilon(self) -> float:
        """The bound of the inner adversary in training, of the first run that had one; 0 if none had."""
        return next((run.epsilon for run in self.runs if run.epsilon), 0.0)

    @cached_property
    def epsilons(self) -> list[float]:
        """All bounds at which some run was attacked, but for those that let every image become any other."""
        found = {_exact(r.epsilon) for run in self.runs for r in run.attacks() if r.label != "clean"}
        return sorted(epsilon for epsilon in found if epsilon < WHOLE_BOX)


@dataclass(frozen=True)
class Sweep:
    """Accuracy against one setting of an attack, all its other settings being the same for all runs."""

    fixed: dict[str, Any]
    """The other settings."""
    curves: tuple[tuple[RunFiles, list[tuple[Any, Summary]]], ...]
    """For each run that has points: (value, accuracy)."""


def sweep(study: Study, vary: str, attack: str = "PGD", **wanted: Any) -> Sweep | None:
    """EOT-PGD against epsilon, n or m: at the other settings for which there are most points; None if there are none.

    A deterministic network has no EOT-PGD: its PGD is the same thing, whatever n.
    """
    found = {run.path: _swept(run, vary, attack, wanted) for run in study.runs}
    leading = [found[run.path] for run in study.runs if run.random and found[run.path]] or list(found.values())
    keys = {key for of_run in leading for key in of_run}
    if not keys:
        return None

    def points(key: tuple[Any, ...]) -> tuple[Any, ...]:
        values = [len({r.description[vary] for r in of_run.get(key, [])}) for of_run in leading]
        named = dict(zip(_others(vary), key, strict=True))
        return sum(values), -abs(named.get("epsilon", study.epsilon) - study.epsilon), key

    best = max(keys, key=points)
    fixed = dict(zip(_others(vary), best, strict=True))
    curves = []
    for run in study.runs:
        same = best if run.random else next((key for key in found[run.path] if _same_but_n(vary, key, best)), None)
        records = found[run.path].get(same, []) if same is not None else []
        if records:
            curves.append((run, [(_exact(x), accuracy) for x, accuracy in curve(records, vary)]))
    return Sweep(fixed, tuple(curves))


def _exact(value: Any) -> Any:
    """0.3 where a product left 0.30000000000000004."""
    return round(value, 12) if isinstance(value, float) else value


def _others(vary: str) -> tuple[str, ...]:
    return tuple(name for name in SETTINGS if name != vary)


def _same_but_n(vary: str, key: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a == b for name, a, b in zip(_others(vary), key, other, strict=True) if name != "n")


def _swept(run: RunFiles, vary: str, attack: str, wanted: dict[str, Any]) -> dict[tuple[Any, ...], list[Record]]:
    """The records of the attack by their other settings."""
    labels = {f"EOT-{attack}", f"EOT^1-{attack}"} if run.random else {attack}
    if not run.random:
        wanted = {name: value for name, value in wanted.items() if name != "n"}
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in run.attacks(**wanted):
        if record.label in labels and record.epsilon < WHOLE_BOX:
            groups.setdefault(tuple(record.description[name] for name in _others(vary)), []).append(record)
    return groups


def at_epsilon(study: Study, epsilon: float, n: int | None = None) -> list[list[Record]]:
    """For each run its clean records and each attack's at this bound, one setting of each, on the same examples.

    EOT is read at n, or else at the n of most attacks; of an attack's other settings, those of most modes, runs and
    repeats, and of these the largest: a sweep over one setting beside the suite does not change the table.
    """
    found = [_together(r for r in run.attacks() if _at(r, epsilon)) for run in study.runs]
    n = n or usual_n(r for records in found for r in records)
    found = [[r for r in records if r.mode != "eot" or r.n == n] for records in found]
    usual = Counter(_strength(r) for records in found for r in records)
    chosen = []
    for run, records in zip(study.runs, found, strict=True):
        own = [r for r in run.attacks(label="clean") if not records or _examples(r) == _examples(records[0])]
        for label in dict.fromkeys(r.label for r in records):
            candidates = [r for r in records if r.label == label]
            best = max((_strength(r) for r in candidates), key=lambda strength: (usual[strength], strength))
            own += [r for r in candidates if _strength(r) == best]
        chosen.append(own)
    return chosen


def _at(record: Record, epsilon: float) -> bool:
    return record.label != "clean" and math.isclose(record.epsilon, epsilon)


def _together(records: Iterable[Record]) -> list[Record]:
    """Those on the examples of most of them: a Total needs the same, and some checks look at a part of them."""
    records = list(records)
    examples = Counter(map(_examples, records))
    most = max(examples, key=lambda ids: (examples[ids], len(ids)), default=None)
    return [r for r in records if _examples(r) == most]


def _examples(record: Record) -> bytes:
    """Tells sets of examples apart."""
    ids: bytes = record["ids"].tobytes()
    return ids


def _strength(record: Record) -> tuple[str, int, int]:
    """What tells settings of one attack apart, whatever the mode."""
    return record.attack["name"], record.m, record.restarts


def usual_n(records: Iterable[Record]) -> int | None:
    """The number of models that most EOT attacks look at; None if there are none."""
    counts = Counter(n for n, _ in {(r.n, r.label) for r in records if r.mode == "eot"})
    return max(counts, key=lambda n: (counts[n], n), default=None)
