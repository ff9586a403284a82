"""Do the numbers mean robustness, or gradients that hide?  The five behaviours of obfuscated gradients, measured.

Every item has a verdict and the numbers behind it.  Changes are judged by paired flips on the same examples, on an
ensemble that had no part in choosing what is compared.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from graddiv import store
from graddiv.attacks import APGD, FGSM, PGD, Attack, RandomSearch, Square
from graddiv.distributed import ALONE, Process
from graddiv.evaluation.batches import WorkListener, run, silent
from graddiv.evaluation.robustness import MODES, Cell, Mode, attack_job
from graddiv.evaluation.target import Target
from graddiv.records import AttackRecord, flips
from graddiv.runs import CHECKLIST

Outcome = Literal["pass", "warn", "fail", "not enough evidence"]

SIGNIFICANCE = 0.01
"""A change is one if chance alone would give such one-sided flips with less than this probability."""

MIN_FLIPS = math.ceil(1 - math.log2(SIGNIFICANCE))
"""So many flips, all to one side, reach that level: 2 / 2^8 < 0.01.  Where fewer examples are left nothing can show."""

TOO_FEW = f"; fewer than {MIN_FLIPS} examples are left right, too few to show a change"

LARGE_GAIN = 0.05
"""Attacks that still gain more than this share of examples when they are made longer were far from done."""

WHOLE_BOX = 1.0
"""The l_inf radius within which every image lies."""


class Item(NamedTuple):
    """One question, its answer and the numbers behind it."""

    name: str
    verdict: Outcome
    sentence: str
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How much is spent on the evidence."""

    n: int = 10
    m: int = 50
    queries: int = 1000
    radii: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    """Shares of epsilon."""
    samples: int = 10_000
    images: int = 100
    """Of so many images on which EOT-PGD failed random search is tried."""
    n_values: tuple[int, ...] = (1, 5, 10, 20, 50, 100)
    m_values: tuple[int, ...] = (10, 20, 50, 100, 200)
    restarts: tuple[int, ...] = (1, 5)


QUICK = Settings(
    n=5, m=10, queries=100, radii=(0.5, 1.0, 2.0), samples=200, images=20, n_values=(1, 5, 10), m_values=(5, 10, 20),
    restarts=(1, 3),
)  # fmt: skip
"""Minutes on a small network: enough to see what goes badly wrong."""


@dataclass(frozen=True)
class Evidence:
    """The records that the items are judged by."""

    one_step: Sequence[AttackRecord]
    iterative: Sequence[AttackRecord]
    black_box: Sequence[AttackRecord]
    unbounded: Sequence[AttackRecord]
    radii: Sequence[AttackRecord]
    n: Sequence[AttackRecord]
    m: Sequence[AttackRecord]
    restarts: Sequence[AttackRecord]
    random: AttackRecord | None
    """Of images on which EOT-PGD failed; None if there are too few."""


def checklist(
    target: Target,
    epsilon: float,
    directory: Path | None = None,
    *,
    settings: Settings = Settings(),  # noqa: B008 -- frozen
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> list[Item]:
    """Make the records that are not there yet, judge, and write the verdicts beside them."""
    items = judge(gather(target, epsilon, directory, settings=settings, process=process, progress=progress))
    if directory is not None and process.writes:
        content = {
            "target": target.name,
            "epsilon": epsilon,
            "examples": len(target.data),
            "settings": asdict(settings),
            "items": [item._asdict() for item in items],
        }
        store.write_json(directory / CHECKLIST, content)
    return items


def gather(
    target: Target,
    epsilon: float,
    directory: Path | None = None,
    *,
    settings: Settings = Settings(),  # noqa: B008 -- frozen
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> Evidence:
    """Run the attacks: the same records as `graddiv attack` makes, so that neither repeats the other's work."""

    def cell(attack: Attack, mode: Mode = "eot", radius: float = epsilon, n: int = settings.n) -> Cell:
        return Cell(attack, mode if target.random else "fixed", n, radius, 0)

    m, square = settings.m, Square(m=settings.queries)
    wanted = {
        "one_step": [cell(FGSM(), mode) for mode in MODES],
        "iterative": [*(cell(PGD(m=m), mode) for mode in MODES), cell(APGD(m=m))],
        "black_box": [cell(square, "fixed"), cell(square)],
        "unbounded": [cell(PGD(m=m), radius=WHOLE_BOX)],
        "radii": [cell(PGD(m=m), radius=_rounded(share * epsilon)) for share in settings.radii],
        "n": [cell(PGD(m=m), n=n) for n in settings.n_values] if target.random else [],
        "m": [cell(PGD(m=steps)) for steps in settings.m_values],
        "restarts": [cell(PGD(m=m, restarts=restarts)) for restarts in settings.restarts],
    }
    every = list(dict.fromkeys(cell for group in wanted.values() for cell in group))
    made = dict(
        zip(
            every,
            run([attack_job(target, c, directory) for c in every], process=process, progress=progress),
            strict=True,
        )
    )
    found = {name: [made[c] for c in dict.fromkeys(group)] for name, group in wanted.items()}

    failed = made[cell(PGD(m=m))]
    survivors = np.flatnonzero(failed.correct & failed.correct_again)[: settings.images]
    random = None
    if len(survivors) >= MIN_FLIPS:
        search = cell(RandomSearch(samples=settings.samples))
        job = attack_job(target.take(torch.from_numpy(survivors)), search, directory)
        [random] = run([job], process=process, progress=progress)
    return Evidence(random=random, **found)


def _rounded(radius: float) -> float:
    """To six digits, as file names have them: 1.5 * 0.2 is 0.3, whose record may be there."""
    return float(f"{radius:.6g}")


def judge(evidence: Evidence) -> list[Item]:
    """The verdicts."""
    longer = (
        ("more models", "n", evidence.n),
        ("more iterations", "m", evidence.m),
        ("more restarts", "restarts", evidence.restarts),
    )
    return [
        one_step(evidence.one_step, evidence.iterative),
        black_box(evidence.black_box, evidence.iterative),
        unbounded(evidence.unbounded[0]),
        random_search(evidence.random),
        distortion(evidence.radii),
        *(converged(name, key, records) for name, key, records in longer if records),
    ]


class Comparison(NamedTuple):
    """Two attacks on the same examples."""

    weaker: str
    """The one that is expected to be no better."""
    stronger: str
    accuracies: tuple[float, float]
    right: tuple[int, int]
    """Examples that each leaves right: no more than these can be lost, or won."""
    lost: int
    """Examples on which only the second succeeded."""
    won: int
    """Examples on which only the first succeeded."""
    p: float

    @property
    def upside_down(self) -> bool:
        """Whether the attack expected to be weaker is the stronger one, more than by chance."""
        return self.won > self.lost and self.p < SIGNIFICANCE


def compare(weaker: AttackRecord, stronger: AttackRecord) -> Comparison:
    """Paired flips, on the second ensemble: attacks are chosen on the first."""
    before, after = weaker.correct_again, stronger.correct_again
    change = flips(before, after)
    names = (_named(weaker), _named(stronger))
    accuracies, right = (float(before.mean()), float(after.mean())), (int(before.sum()), int(after.sum()))
    return Comparison(*names, accuracies, right, change.lost, change.won, change.p)


def one_step(single: Sequence[AttackRecord], iterative: Sequence[AttackRecord]) -> Item:
    """1. One-step attacks must not do better than iterative ones: within EOT, and best against best.

    Within the other modes it is told, as a warning: there an iterative attack may follow one draw too far.
    """
    deciding = [compare(_best(single), _best(iterative))]
    telling: list[Comparison] = []
    for record in single:
        rival = next(r for r in iterative if r.mode == record.mode and r.attack and r.attack["name"] == "PGD")
        (deciding if record.mode == "eot" else telling).append(compare(record, rival))
    return _ordering("one-step attacks are weaker than iterative ones", deciding, telling)


def black_box(blind: Sequence[AttackRecord], seeing: Sequence[AttackRecord]) -> Item:
    """2. A black-box attack must not do better than the best white-box one."""
    return _ordering("black-box attacks are weaker than white-box ones", [compare(_best(blind), _best(seeing))], [])


def unbounded(record: AttackRecord) -> Item:
    """3. An attack that may change every pixel at will must reach 100 % success."""
    left, examples = int(record.correct.sum()), len(record.correct)
    verdict: Outcome = "pass" if left <= 0.005 * examples else "warn" if left <= LARGE_GAIN * examples else "fail"
    if verdict == "pass" and examples < MIN_FLIPS:
        verdict = "not enough evidence"
    sentence = f"{_named(record)} leaves {left} of {examples} examples right"
    return Item("an unbounded attack reaches 100 %", verdict, sentence, {"left": left, "examples": examples})


def random_search(record: AttackRecord | None) -> Item:
    """4. Where EOT-PGD fails random search must fail too; an image counts if both ensembles are fooled."""
    name = "random search finds nothing where EOT-PGD failed"
    if record is None:
        sentence = f"EOT-PGD failed on fewer than {MIN_FLIPS} examples: nothing is left to search"
        return Item(name, "not enough evidence", sentence, {"images": 0})
    found, images = int((~record.correct & ~record.correct_again).sum()), len(record.correct)
    verdict: Outcome = "pass" if found == 0 else "warn" if found <= LARGE_GAIN * images else "fail"
    sentence = f"{record.m} random points in the ball of each of {images} such images fool the network on {found}"
    return Item(name, verdict, sentence, {"found": found, "images": images, "samples": record.m})


def distortion(records: Sequence[AttackRecord]) -> Item:
    """5. A larger radius must give more success: never less from one to the next, and more from end to end."""
    ordered = sorted(records, key=lambda record: float(record.epsilon))
    steps = [compare(a, b) for a, b in pairwise(ordered)]
    ends = compare(ordered[0], ordered[-1])
    grew = ends.lost > ends.won and ends.p < SIGNIFICANCE
    evidence = {
        "epsilon": [record.epsilon for record in ordered],
        "accuracy": [record.accuracy for record in ordered],
        "steps": [step._asdict() for step in steps],
    }
    curve = ", ".join(f"{100 * r.accuracy:.1f} % at {r.epsilon:.4g}" for r in ordered)
    worse = [step for step in steps if step.upside_down]
    if worse:
        verdict: Outcome = "fail"
        sentence = f"accuracy rises with epsilon ({curve})"
    elif grew:
        verdict, sentence = "pass", f"accuracy falls with epsilon ({curve})"
    else:
        verdict, sentence = "fail", f"accuracy hardly changes with epsilon ({curve})"
        if ends.right[0] < MIN_FLIPS:
            verdict, sentence = "not enough evidence", sentence + TOO_FEW
    return Item("success grows with epsilon", verdict, sentence, evidence)


def converged(name: str, key: str, records: Sequence[AttackRecord]) -> Item:
    """Has the attack stopped to gain?  The longest against the one before it; if not, accuracies are upper bounds."""
    ordered = sorted(records, key=lambda record: float(record.value(key)))
    last = compare(ordered[-2], ordered[-1])
    values = [record.value(key) for record in ordered]
    gain = last.accuracies[0] - last.accuracies[1]
    falls = last.lost > last.won and last.p < SIGNIFICANCE
    verdict: Outcome = "pass" if not falls else "warn" if gain <= LARGE_GAIN else "fail"
    curve = ", ".join(f"{100 * r.accuracy:.1f} % at {v}" for r, v in zip(ordered, values, strict=True))
    sentence = f"accuracy {'still falls' if falls else 'has settled'} as {key} grows ({curve})"
    if verdict == "pass" and last.right[0] < MIN_FLIPS:
        verdict, sentence = "not enough evidence", sentence + TOO_FEW
    evidence = {key: values, "accuracy": [record.accuracy for record in ordered], "last": last._asdict()}
    return Item(f"{name} gain nothing", verdict, sentence, evidence)


def _ordering(name: str, deciding: Sequence[Comparison], telling: Sequence[Comparison]) -> Item:
    """Fails if a deciding comparison is upside down, warns if a telling one is."""
    wrong, odd = ([c for c in group if c.upside_down] for group in (deciding, telling))
    worst = (wrong or odd or list(deciding))[0]
    verdict: Outcome = "fail" if wrong else "warn" if odd else "pass"
    sentence = (
        f"{100 * worst.accuracies[0]:.1f} % under {worst.weaker}, {100 * worst.accuracies[1]:.1f} % under "
        f"{worst.stronger} ({worst.lost} examples fall to the second alone, {worst.won} to the first)"
    )
    if verdict == "pass" and any(c.right[1] < MIN_FLIPS for c in deciding):
        verdict, sentence = "not enough evidence", sentence + TOO_FEW
    elif verdict == "pass" and worst.won > worst.lost and worst.lost + worst.won < MIN_FLIPS:
        verdict = "not enough evidence"
    evidence = {"deciding": [c._asdict() for c in deciding], "telling": [c._asdict() for c in telling]}
    return Item(name, verdict, sentence, evidence)


def _best(records: Iterable[AttackRecord]) -> AttackRecord:
    """The strongest attack, as the first ensemble sees it."""
    return min(records, key=lambda record: record.accuracy)


def _named(record: AttackRecord) -> str:
    return f"{record.label} (m {record.m}" + (f", n {record.n})" if record.mode == "eot" else ")")
