"""Does a high accuracy under attack mean robustness, or only gradients that mislead attacks?

The five behaviours that reveal obfuscated gradients (Athalye et al. 2018) and whether the attacks have converged, each
with a verdict and the numbers behind it.  Two attacks are compared by the examples on which only one of them succeeds,
as judged by an ensemble that had no part in choosing which attacks are compared.

In the paper: docs/equations.md.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from graddiv import store
from graddiv.attacks import APGD, FGSM, PGD, Attack, RandomSearch, Square
from graddiv.distributed import ALONE, Process
from graddiv.evaluation.batches import WorkListener, run, silent
from graddiv.evaluation.cell import MODES, Cell, Mode, Source
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.target import Target
from graddiv.evaluation.verdicts import Item, Outcome
from graddiv.geometry import Geometry, Linf
from graddiv.records import AttackRecord, flips
from graddiv.records.record import CHECKLIST

SIGNIFICANCE = 0.01
"""A difference counts if chance alone would give such one-sided flips with less than this probability."""

MIN_FLIPS = math.ceil(1 - math.log2(SIGNIFICANCE))
"""How many flips, all to one side, reach that level: 2 / 2^8 < 0.01.  Fewer examples cannot show any difference."""

TOO_FEW = f"; fewer than {MIN_FLIPS} examples are left right, too few to show a change"

LARGE_GAIN = 0.05
"""An attack that gains more than this share of the examples when it is made longer was far from converged."""


@dataclass(frozen=True)
class Settings:
    """How much is spent on the evidence."""

    n: int = 10
    """Sample models in each iteration of EOT."""
    m: int = 50
    """Iterations of the gradient attacks."""
    queries: int = 1000
    """Queries of the black-box attack: of Square or, where inputs are no images, of random search."""
    radii: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    """The radii, in multiples of epsilon, at which accuracy must fall."""
    samples: int = 10_000
    """Points of random search for each image."""
    images: int = 100
    """On how many of the images on which EOT-PGD failed random search is tried."""
    n_values: tuple[int, ...] = (1, 5, 10, 20, 50, 100)
    """The numbers of models at which convergence is checked."""
    m_values: tuple[int, ...] = (10, 20, 50, 100, 200)
    """The numbers of iterations at which convergence is checked."""
    restarts: tuple[int, ...] = (1, 5)
    """The numbers of restarts at which convergence is checked."""


QUICK = Settings(
    n=5, m=10, queries=100, radii=(0.5, 1.0, 2.0), samples=200, images=20, n_values=(1, 5, 10), m_values=(5, 10, 20),
    restarts=(1, 3),
)  # fmt: skip
"""Settings that take minutes on a small network: enough to see what goes badly wrong."""


@dataclass(frozen=True)
class Evidence:
    """The records by which the items are judged."""

    one_step: Sequence[AttackRecord]
    """FGSM in every mode."""
    iterative: Sequence[AttackRecord]
    """PGD in every mode, and EOT-APGD."""
    black_box: Sequence[AttackRecord]
    """Square, or random search where inputs are no images, on a fixed model and with EOT."""
    unbounded: Sequence[AttackRecord]
    """EOT-PGD with a radius that admits every image."""
    radii: Sequence[AttackRecord]
    """EOT-PGD at several radii."""
    n: Sequence[AttackRecord]
    """EOT-PGD with several numbers of models; none for a deterministic network."""
    m: Sequence[AttackRecord]
    """EOT-PGD with several numbers of iterations."""
    restarts: Sequence[AttackRecord]
    """EOT-PGD with several numbers of restarts."""
    random: AttackRecord | None
    """Random search on images on which EOT-PGD failed; None if there are too few such images."""


def checklist(
    target: Target,
    epsilon: float,
    directory: Path | None = None,
    *,
    settings: Settings = Settings(),  # noqa: B008 -- frozen
    geometry: Geometry = Linf(),  # noqa: B008 -- frozen
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> list[Item]:
    """Make the records that are not there yet, judge them, and write checklist.json beside them.

    target: the network and its examples.
    epsilon: the radius at which the network is claimed to be robust.
    directory: where records and checklist are stored; None for nowhere.
    settings: how much is spent on the evidence.
    geometry: the norm of the radius.
    process: this process among those that share the work; only the first writes the checklist.
    progress: called as the work goes on.
    """
    evidence = gather(
        target, epsilon, directory, settings=settings, geometry=geometry, process=process, progress=progress
    )
    items = judge(evidence)
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
    geometry: Geometry = Linf(),  # noqa: B008 -- frozen
    source: Source | None = None,
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> Evidence:
    """Run the attacks; arguments as for `checklist`, and `source`, whose gradients attacks take if not the target's.

    The records are the same as those of `graddiv attack`, so that neither repeats the other's work.
    """

    def cell(attack: Attack, mode: Mode = "eot", radius: float = epsilon, n: int = settings.n) -> Cell:
        needs_gradients = not isinstance(attack, Square | RandomSearch)
        how, seen = mode if target.random else "fixed", source if needs_gradients else None
        return Cell(replace(attack, geometry=geometry), how, n, radius, 0, seen)

    m, box = settings.m, geometry.diameter(target.pixels)
    # squares exist in images only
    blind = Square(m=settings.queries) if target.shows_images else RandomSearch(samples=settings.queries)
    wanted = {
        "one_step": [cell(FGSM(), mode) for mode in MODES],
        "iterative": [*(cell(PGD(m=m), mode) for mode in MODES), cell(APGD(m=m))],
        "black_box": [cell(blind, "fixed"), cell(blind)],
        "unbounded": [cell(PGD(m=m), radius=box)],
        "radii": [cell(PGD(m=m), radius=_rounded(min(share * epsilon, box), epsilon)) for share in settings.radii],
        "n": [cell(PGD(m=m), n=n) for n in settings.n_values] if target.random else [],
        "m": [cell(PGD(m=steps)) for steps in settings.m_values],
        "restarts": [cell(PGD(m=m, restarts=restarts)) for restarts in settings.restarts],
    }
    every = list(dict.fromkeys(cell for group in wanted.values() for cell in group))
    jobs = [attack_job(target, c, directory) for c in every]
    made = dict(zip(every, run(jobs, process=process, progress=progress), strict=True))
    found = {name: [made[c] for c in dict.fromkeys(group)] for name, group in wanted.items()}

    failed = made[cell(PGD(m=m))]
    survivors = np.flatnonzero(failed.correct & failed.correct_again)[: settings.images]
    random = None
    if len(survivors) >= MIN_FLIPS:
        search = cell(RandomSearch(samples=settings.samples))
        job = attack_job(target.take(torch.from_numpy(survivors)), search, directory)
        [random] = run([job], process=process, progress=progress)
    return Evidence(random=random, **found)


def _rounded(radius: float, epsilon: float) -> float:
    """Round to six digits, as in file names: 1.5 * 0.2 then is 0.3, whose record may exist already; epsilon stays."""
    return epsilon if f"{radius:.6g}" == f"{epsilon:.6g}" else float(f"{radius:.6g}")


def judge(evidence: Evidence) -> list[Item]:
    """Judge every item."""
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


class AttackComparison(NamedTuple):
    """Two attacks on the same examples."""

    weaker: str
    """The attack that is expected to do no better than the other."""
    stronger: str
    """The other attack."""
    accuracies: tuple[float, float]
    """The network's accuracy under each of them."""
    right: tuple[int, int]
    """How many examples the network still gets right under each of them."""
    lost: int
    """How many examples only the second attack fools the network on."""
    won: int
    """How many examples only the first attack fools the network on."""
    p: float
    """The probability that chance alone gives such one-sided flips."""

    @property
    def upside_down(self) -> bool:
        """Whether the attack expected to be weaker is significantly the stronger one."""
        return self.won > self.lost and self.p < SIGNIFICANCE


def compare(weaker: AttackRecord, stronger: AttackRecord) -> AttackComparison:
    """Compare two attacks by paired flips on the second ensemble, since the first one chooses the best attacks."""
    before, after = weaker.correct_again, stronger.correct_again
    change = flips(before, after)
    names = (_title(weaker), _title(stronger))
    accuracies, right = (float(before.mean()), float(after.mean())), (int(before.sum()), int(after.sum()))
    return AttackComparison(*names, accuracies, right, change.lost, change.won, change.p)


def one_step(single: Sequence[AttackRecord], iterative: Sequence[AttackRecord]) -> Item:
    """1. One-step attacks must not do better than iterative ones: within EOT, and best against best.

    Within the other modes it is only a warning: there an iterative attack may follow one draw of the noise too far.
    """
    deciding = [compare(_best(single), _best(iterative))]
    telling: list[AttackComparison] = []
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
    sentence = f"{_title(record)} leaves {left} of {examples} examples right"
    return Item("an unbounded attack reaches 100 %", verdict, sentence, {"left": left, "examples": examples})


def random_search(record: AttackRecord | None) -> Item:
    """4. Where EOT-PGD fails, random search must fail too; it succeeds on an image if it fools both ensembles."""
    name = "random search finds nothing where EOT-PGD failed"
    if record is None:
        sentence = f"EOT-PGD failed on fewer than {MIN_FLIPS} examples: nothing is left to search"
        return Item(name, "not enough evidence", sentence, {"images": 0})
    found, images = int((~record.correct & ~record.correct_again).sum()), len(record.correct)
    verdict: Outcome = "pass" if found == 0 else "warn" if found <= LARGE_GAIN * images else "fail"
    sentence = f"{record.m} random points in the ball of each of {images} such images fool the network on {found}"
    return Item(name, verdict, sentence, {"found": found, "images": images, "samples": record.m})


def distortion(records: Sequence[AttackRecord]) -> Item:
    """5. A larger radius must give more success: never less from one radius to the next, and more from end to end."""
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
    """Has the attack converged?  Compares the longest attack with the one before it.

    If the longest still gains, the accuracies in tables are only upper bounds.
    """
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


def _ordering(name: str, deciding: Sequence[AttackComparison], telling: Sequence[AttackComparison]) -> Item:
    """Make the item that fails if a deciding comparison is upside down, and warns if a telling one is."""
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
    """Return the record of the strongest attack, as the first ensemble judges it."""
    return min(records, key=lambda record: record.accuracy)


def _title(record: AttackRecord) -> str:
    return f"{record.label} (m {record.m}" + (f", n {record.n})" if record.mode == "eot" else ")")
