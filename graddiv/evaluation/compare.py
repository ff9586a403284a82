"""Compare models on the same examples with the same attacks and draws: accuracy, flips, what randomness buys, cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.evaluation.examples import examples_of, unscaled
from graddiv.evaluation.in_memory import evaluate_all
from graddiv.evaluation.models import Frozen, Model
from graddiv.evaluation.robustness import Cell, attack_all
from graddiv.evaluation.run import Session
from graddiv.evaluation.target import Target
from graddiv.records import AttackRecord, flips, html_table, summary, table_per_epsilon, total
from graddiv.records.statistics import COMPARED, Compared
from graddiv.seeding import fold


class Pair(NamedTuple):
    """Two models on the same images, under the worst of all attacks of one radius."""

    first: str
    second: str
    epsilon: float
    lost: int  #: Images on which only the first is right.
    won: int  #: Images on which only the second is.
    p: float  #: Two-sided sign test: chance alone giving flips at least as one-sided.


@dataclass(frozen=True)
class ModelComparison:
    """The records of every model by name, and of its draw that the adversary knows."""

    records: Mapping[str, Sequence[AttackRecord]]
    known: Mapping[str, Sequence[AttackRecord]]  #: Of random models: one draw answers, and the adversary knows it.

    @property
    def rows(self) -> list[Compared]:
        """Accuracy of each model at each radius, clean images first."""
        found = []
        for name, records in self.records.items():
            clean = [r for r in records if r.is_clean]
            found.append(Compared(name, 0.0, "clean", summary(_left(clean)), _per_draw(clean), self._known(name), 0.0))
            for epsilon in table_per_epsilon(records):
                group = [r for r in records if r.epsilon == epsilon and not r.is_clean]
                strongest = min(group, key=lambda r: r.accuracy).label
                spent = sum(float((r.cost_forwards + r.cost_backwards).mean()) for r in group)
                per_draw, known = _per_draw(group), self._known(name, epsilon)
                found.append(Compared(name, epsilon, strongest, summary(_left(group)), per_draw, known, spent))
        return found

    @property
    def pairs(self) -> list[Pair]:
        """Every two models at every radius: on how many images only one of them is right."""
        names, found = list(self.records), []
        for epsilon in sorted({r.epsilon for records in self.records.values() for r in records}):
            left = {name: _left([r for r in self.records[name] if r.epsilon == epsilon])[0] for name in names}
            for i, first in enumerate(names):
                for second in names[i + 1 :]:
                    found.append(Pair(first, second, epsilon, *flips(left[first], left[second])))
        return found

    def write(self, directory: Path | str) -> Path:
        """Write report.html, tables (md, tex, csv) and the curve against epsilon; needs the extra [report]."""
        from graddiv.report.models import write_comparison

        return write_comparison(self.rows, self.pairs, Path(directory))

    def _known(self, name: str, epsilon: float = 0.0) -> float | None:
        """Accuracy of one draw that the adversary knows; None for a deterministic model."""
        found = [r for r in self.known.get(name, ()) if r.epsilon == epsilon]
        return float(np.logical_and.reduce([r.correct for r in found]).mean()) if found else None

    def __str__(self) -> str:
        return "\n".join("  ".join(f"{cell:<18}" for cell in row) for row in self._shown())

    def _repr_html_(self) -> str:
        return html_table(self._shown())

    def _shown(self) -> list[tuple[str, ...]]:
        return [COMPARED, *(row.cells for row in self.rows)]


def _left(records: Sequence[AttackRecord]) -> list[np.ndarray]:
    """What every attack leaves right, by either ensemble of each repeat."""
    repeats = sorted({r.repeat for r in records})
    return [flags for repeat in repeats for flags in total([r for r in records if r.repeat == repeat])]


def _per_draw(records: Sequence[AttackRecord]) -> float:
    return min(r.accuracy_per_draw for r in records)


def compare(
    models: Mapping[str, Model], x: object, y: object = None, *, epsilon: float | Sequence[float],
    out: Path | str | None = None, **options: Any,
) -> ModelComparison:  # fmt: skip
    """Models side by side: the same examples, attacks and draws for all of them.

        found = compare({"plain": module, "dropout": F}, x, y, epsilon=[4 / 255, 8 / 255], attacks=["pgd"])
        print(found)
        found.write("comparisons/mine")  # the page, tables, the curve against epsilon

    Returns a comparison with `rows` (accuracy of each model at each radius under the worst of all attacks), `pairs`
    (how many images flip between two models, with a test) and `records`.

    models: what `evaluate` takes, by the names that tables and figures show.
    x, y, epsilon: as for `evaluate`.
    out: a directory for the records, so that the same call again computes only what is missing, and for the page.
    options: of `evaluate`, such as `attacks`, `norm`, `n`, `m`, `seed`.
    """
    if not isinstance(models, Mapping) or len(models) < 2:
        raise GradDivError('compare takes at least two models by name, such as {"plain": module, "dropout": F}')
    if odd := [name for name in models if not isinstance(name, str) or not name.strip() or {"/", "\\"} & set(name)]:
        raise GradDivError(f"a model is called {odd[0]!r}, expected a name without slashes")
    if y is None:
        data = examples_of(x, y, options.get("bounds"))  # once, since a loader may shuffle
        x, y = unscaled(data.x, data.bounds), data.y
    records, known = dict[str, list[AttackRecord]](), dict[str, list[AttackRecord]]()

    for name, model in models.items():

        def both(target: Target, wanted: list[Cell], session: Session) -> list[AttackRecord]:
            known[target.name] = _with_known_draw(target, wanted, session)
            return attack_all(target, wanted, session)

        where = None if out is None else Path(out) / "records" / name
        given: dict[str, Any] = {"epsilon": epsilon, "name": name, "directory": where, **options}
        records[name] = evaluate_all(both, model, x, y, **given)
    found = ModelComparison(records, known)
    if out is not None:
        store.make_directory(Path(out))
        found.write(out)
    return found


def _with_known_draw(target: Target, wanted: Sequence[Cell], session: Session) -> list[AttackRecord]:
    """Attack one draw of a random network that alone answers, with the attacks of every view, once each."""
    if not target.random:
        return []
    draw = target.F.draw(fold(target.seed, "known draw"))
    alone = replace(target, F=Frozen(target.F, (draw,)), name=f"{target.name}, known draw", n_ensemble=1)
    cells = list(dict.fromkeys(replace(cell, mode="fixed", n=1) for cell in wanted if cell.repeat == 0))
    folder = session.directory and session.directory / "known-draw"
    return attack_all(alone, cells, replace(session, directory=folder))
