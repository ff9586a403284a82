"""Does a high accuracy under attack mean robustness, or only gradients that mislead attacks?

The five behaviours of obfuscated gradients (Athalye et al. 2018), convergence, and signs that an attack failed for its
own reasons (Pintor et al. 2022).  An ensemble that does not choose attacks compares them.  See docs/equations.md.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from graddiv import store
from graddiv.attacks import APGD, FGSM, PGD, Attack, RandomSearch, Square
from graddiv.evaluation.budget import BUDGETS, Budget
from graddiv.evaluation.explained import explanation
from graddiv.evaluation.families import BLIND, doublings_of
from graddiv.evaluation.inspection import BEHAVIOURS, Answer, Check, Item, Outcome, check
from graddiv.evaluation.judgement import gain_bound
from graddiv.evaluation.robustness import MODES, Cell, Mode, SourceNetwork, attack_all
from graddiv.evaluation.run import IN_MEMORY, Session
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, Geometry
from graddiv.records import AttackRecord, TrajectoryRecord, flips
from graddiv.records.record import CHECKLIST

SIGNIFICANCE = 0.01  #: A difference counts if chance alone gives such one-sided flips with less than this probability.
#: How many flips, all to one side, reach that level: 2 / 2^8 < 0.01.  Fewer examples cannot show any difference.
MIN_FLIPS = math.ceil(1 - math.log2(SIGNIFICANCE))
TOO_FEW = f"; fewer than {MIN_FLIPS} examples are left right, too few to show a change"
SETTLED = 0.05  #: The probability with which a longer attack gains more than the bound that is given for it.
LARGE_GAIN = 0.05  #: An attack that gains more than this share of the examples when made longer was far from converged.
RARE, OFTEN = 0.02, 0.1  #: Shares of the images up to which a sign does not matter, and beyond which it is a failure.
CONTRADICTED = 0.05  #: Queries contradict gradients if chance alone gives such one-sided flips with less than this.
LAST = 0.25  #: The share of the steps that counts as the end of the attack.
STILL = 0.05  #: An image whose loss gains this share of its whole range in the end was not optimized to the end.
STANDARD = BUDGETS["checklist"]["standard"]
behaviour = partial(check, of=BEHAVIOURS, decisive=("fail",))


@dataclass(frozen=True)
class Evidence:
    """Records by purpose; a check names those that it needs, and applies if they exist.

    one_step: FGSM in every mode.  iterative: PGD in every mode, and EOT-APGD.  black_box: Square, or random search
    where inputs are no images, on a fixed model and with EOT.  unbounded: EOT-PGD with a radius that admits all images.
    radii, n, m, restarts: EOT-PGD at several values of them.  random: random search on images on which EOT-PGD failed.
    trajectory: EOT-PGD step by step.  doubled: an attack by gradients, and all that were made of it by doubling;
    doublings: what that gained.  explained: what gradients explain.  families: attacks that go on from the images of
    others, by family.  before_blind: verdicts on the images before attacks without gradients went on from them.
    left: the accuracy that all attacks left.
    """

    budget: Budget
    groups: Mapping[str, Sequence[Any]]

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self.groups.get(name, ())

    @property
    def families(self) -> Mapping[str, Sequence[AttackRecord]]:
        """Attacks that go on from the images of others, by family."""
        return cast(Mapping[str, Sequence[AttackRecord]], self.groups.get("families", {}))

    def judge(self) -> dict[str, Item]:
        """Run every check that applies."""
        return {name: each(self) for name, each in BEHAVIOURS.items() if all(self[need] for need in each.needs.split())}


def checklist(
    target: Target, epsilon: float, session: Session = IN_MEMORY, *, budget: Budget = STANDARD,
    geometry: Geometry = LINF,
) -> list[Item]:  # fmt: skip
    """Make the missing records, judge all, and write checklist.json beside them."""
    items = list(gather(target, epsilon, session, budget=budget, geometry=geometry).judge().values())
    if session.directory is not None and session.process.writes:
        about = {"target": target.name, "epsilon": epsilon, "examples": len(target.data)}
        found = {"settings": settings_of(budget), "items": [item._asdict() for item in items]}
        store.write_json(session.directory / CHECKLIST, {**about, **found})
    return items


def settings_of(budget: Budget) -> dict[str, Any]:
    """The fields of a budget that the checklist uses, under their names in checklist.json."""
    names = {"samples": "random_points", "images": "random_images", "n_values": "sweep_n", "m_values": "sweep_m"}
    named = {name: name for name in ("n", "m", "queries", "radii")} | names | {"restarts": "restarts"}
    values = {name: getattr(budget, field) for name, field in named.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def gather(
    target: Target, epsilon: float, session: Session = IN_MEMORY, *, budget: Budget = STANDARD,
    geometry: Geometry = LINF, source: SourceNetwork | None = None, by_queries: bool = True,
) -> Evidence:  # fmt: skip
    """Run the attacks, with the gradients of `source` if given; records are the same as those of `graddiv attack`."""

    def cell(attack: Attack, mode: Mode = "eot", radius: float = epsilon, n: int = budget.n) -> Cell:
        seen = None if isinstance(attack, Square | RandomSearch) else source
        return Cell(replace(attack, geometry=geometry), mode if target.random else "fixed", n, radius, 0, seen)

    pgd, box = PGD(m=budget.m), geometry.diameter(target.pixels)
    shows_images = target.data.batch(slice(0, 1))[0].dim() == 4  # squares exist in images only
    blind = Square(m=budget.queries) if shows_images else RandomSearch(samples=budget.queries)
    wanted = {
        "one_step": [cell(FGSM(), mode) for mode in MODES],
        "iterative": [*(cell(pgd, mode) for mode in MODES), cell(APGD(m=budget.m))],
        "black_box": [cell(blind, "fixed"), cell(blind)] if by_queries else [],
        "unbounded": [cell(pgd, radius=box)],
        "radii": [cell(pgd, radius=_rounded(min(share * epsilon, box), epsilon)) for share in budget.radii],
        "n": [cell(pgd, n=n) for n in budget.sweep_n] if target.random else [],
        "m": [cell(PGD(m=steps)) for steps in budget.sweep_m],
        "restarts": [cell(PGD(m=budget.m, restarts=restarts)) for restarts in budget.restarts],
    }
    every = list(dict.fromkeys(cell for group in wanted.values() for cell in group))
    made = dict(zip(every, attack_all(target, every, session), strict=True))
    found = {name: [made[c] for c in dict.fromkeys(group)] for name, group in wanted.items()}
    survivors = np.flatnonzero(np.logical_and(*made[cell(pgd)].verdicts))[: budget.random_images]
    if len(survivors) >= MIN_FLIPS:
        search = cell(RandomSearch(samples=budget.random_points))
        found["random"] = attack_all(target.take(torch.from_numpy(survivors)), [search], session)
    return Evidence(budget, found)


def _rounded(radius: float, epsilon: float) -> float:
    """Round to six digits, as in file names: 1.5 * 0.2 then is 0.3, whose record may exist already; epsilon stays."""
    return epsilon if f"{radius:.6g}" == f"{epsilon:.6g}" else float(f"{radius:.6g}")


class AttackComparison(NamedTuple):
    """Two attacks on the same examples."""

    weaker: str  #: The attack that should do no better than the other.
    stronger: str
    accuracies: tuple[float, float]  #: The network's accuracy under each of them.
    right: tuple[int, int]  #: Examples still right under each of them.
    lost: int  #: Examples that only the stronger attack fools.
    won: int  #: Examples that only the weaker attack fools.
    p: float  #: The probability that chance alone gives such one-sided flips.

    @property
    def upside_down(self) -> bool:
        """Whether the attack expected to be weaker is significantly the stronger one."""
        return self.won > self.lost and self.p < SIGNIFICANCE

    @property
    def falls(self) -> bool:
        return self.lost > self.won and self.p < SIGNIFICANCE


def compare(weaker: AttackRecord, stronger: AttackRecord) -> AttackComparison:
    """Compare two attacks by paired flips on the second ensemble, since the first one chooses the best attacks."""
    before, after = weaker.correct_again, stronger.correct_again
    accuracies, right = (float(before.mean()), float(after.mean())), (int(before.sum()), int(after.sum()))
    return AttackComparison(_title(weaker), _title(stronger), accuracies, right, *flips(before, after))


@behaviour("one-step attacks are weaker than iterative ones", needs="one_step iterative")
def one_step(evidence: Evidence) -> Answer:
    """Raised if FGSM, with one step, does better than PGD with many, beyond chance.
    Means: the many steps are led astray, as by a gradient that is masked at the images or misleads around them.
    Do: raise n and lower the step size; compare with attacks without gradients.
    """
    single, iterative = evidence["one_step"], evidence["iterative"]
    deciding, telling = [compare(_best(single), _best(iterative))], list[AttackComparison]()
    for record in single:
        rival = next(r for r in iterative if r.mode == record.mode and r.attack and r.attack["name"] == "PGD")
        (deciding if record.mode == "eot" else telling).append(compare(record, rival))
    return _ordering(deciding, telling)


@behaviour("black-box attacks are weaker than white-box ones", needs="black_box iterative")
def black_box(evidence: Evidence) -> Answer:
    """Raised if an attack by queries does better than the best one by gradients, beyond chance.
    Means: gradients do not lead where the loss rises: robustness against them is none.
    Do: look at the checks of gradients; attack a version with straight_through steps, or without its preprocessing.
    """
    return _ordering([compare(_best(evidence["black_box"]), _best(evidence["iterative"]))], [])


@behaviour("an unbounded attack reaches 100 %", needs="unbounded")
def unbounded(evidence: Evidence) -> Answer:
    """Raised if an attack that may change every pixel at will leaves images right.
    Means: the attack does not work at all, since a gray image could have been made of each.
    Do: look at the checks of gradients, and at what the network does to its input.
    """
    record = evidence["unbounded"][0]
    left, examples = int(record.correct.sum()), record.examples
    verdict = _graded(left / examples, 0.005, LARGE_GAIN)
    verdict = "not enough evidence" if verdict == "pass" and examples < MIN_FLIPS else verdict
    return verdict, f"{_title(record)} leaves {left} of {examples} examples right", {"left": left, "examples": examples}


@behaviour("random search finds nothing where EOT-PGD failed", needs="iterative")
def random_search(evidence: Evidence) -> Answer:
    """Raised if random points in the ball fool the network on images on which EOT-PGD failed.
    Means: the attack missed what is found blindly.
    Do: raise n and m; follow a surrogate if gradients are masked.
    """
    if not evidence["random"]:
        said = f"EOT-PGD failed on fewer than {MIN_FLIPS} examples: nothing is left to search"
        return "not enough evidence", said, {"images": 0}
    record = evidence["random"][0]
    found, images = int((~record.correct & ~record.correct_again).sum()), record.examples
    said = f"{record.m} random points in the ball of each of {images} such images fool the network on {found}"
    numbers = {"found": found, "images": images, "samples": record.m}
    return _graded(found / images, 0.0, LARGE_GAIN), said, numbers


@behaviour("success grows with epsilon", needs="radii")
def distortion(evidence: Evidence) -> Answer:
    """Raised if accuracy rises with epsilon, or does not fall beyond chance.
    Means: the attack is not limited by its radius; something else stops it.
    Do: look at the checks of gradients; a step size that does not grow with epsilon is a common cause.
    """
    ordered, numbers, curve = _curve(evidence["radii"], "epsilon")
    steps, ends = [compare(a, b) for a, b in pairwise(ordered)], compare(ordered[0], ordered[-1])
    numbers["steps"] = [step._asdict() for step in steps]
    if any(step.upside_down for step in steps):
        return "fail", f"accuracy rises with epsilon ({curve})", numbers
    if ends.falls:
        return "pass", f"accuracy falls with epsilon ({curve})", numbers
    said = f"accuracy does not fall with epsilon beyond chance ({curve})"
    return ("fail", said, numbers) if ends.right[0] >= MIN_FLIPS else ("not enough evidence", said + TOO_FEW, numbers)


def converged(evidence: Evidence, key: str) -> Answer:
    """Raised if the longest attack does better than the one before it, or if its gain may be large.
    Means: accuracy still falls as the attack grows, or there are too few images to exclude it.
    Do: go on until it stops falling, on more images.
    """
    ordered, numbers, curve = _curve(evidence[key], key)
    last = compare(*ordered[-2:])
    gain, bound = gain_bound(ordered[-2].verdicts, ordered[-1].verdicts, SETTLED)
    numbers |= {"last": last._asdict(), "gain": gain, "bound": bound}
    said = f"accuracy {'still falls' if last.falls else 'falls no further beyond chance'} as {key} grows ({curve})"
    if last.falls:
        return "warn" if gain <= LARGE_GAIN else "fail", said, numbers
    if last.right[0] < MIN_FLIPS:
        return "not enough evidence", said + TOO_FEW, numbers
    said += f"; the last step gains at most {100 * bound:.1f} points"
    return "pass" if bound <= LARGE_GAIN else "not enough evidence", said, numbers


def _curve(records: Sequence[AttackRecord], key: str) -> tuple[list[AttackRecord], dict[str, Any], str]:
    """Sort records by a setting; return them, their numbers, and accuracy against the setting in words."""
    ordered = sorted(records, key=lambda record: float(record.value(key)))
    values, accuracies = [r.value(key) for r in ordered], [r.accuracy for r in ordered]
    words = (f"{100 * share:.1f} % at {value:.4g}" for share, value in zip(accuracies, values, strict=True))
    return ordered, {key: values, "accuracy": accuracies}, ", ".join(words)


for _key, _what in (("n", "models"), ("m", "iterations"), ("restarts", "restarts")):
    BEHAVIOURS[f"more_{_what}"] = Check(f"more {_what} gain nothing", partial(converged, key=_key), ("fail",), _key)


@behaviour("no success is lost on the way", needs="trajectory")
def silent_success(evidence: Evidence) -> Answer:
    """Raised if a step of the attack fooled the network on more than 2 % of the images, and its last step does not.
    Means: the attack found adversarial images and lost them: the reported accuracy is too high.
    Do: return the best point instead of the last one.
    """
    path: TrajectoryRecord = evidence["trajectory"][0]
    lost = path.fooled[:, 1:].any(1) & ~path.fooled[:, -1] & ~path.fooled_fresh
    said = f"on {int(lost.sum())} of {path.examples} images a step fooled the network and the last one does not"
    return _share(lost, said)


@behaviour("the attack is optimized to the end", needs="trajectory")
def incomplete(evidence: Evidence) -> Answer:
    """Raised if the loss still rises in the last quarter of the steps on more than 2 % of the images not fooled.
    Means: the attack was stopped before it was done.
    Do: take more steps m, or a larger budget: --budget standard.
    """
    path: TrajectoryRecord = evidence["trajectory"][0]
    loss = np.maximum.accumulate(path.loss.astype(np.float64), axis=1)
    span, last = loss[:, -1] - loss[:, 0], max(1, round(LAST * path.m))
    rise = np.where(span > 1e-9, (loss[:, -1] - loss[:, -1 - last]) / np.where(span > 1e-9, span, 1), 0)
    short = (rise > STILL) & ~path.fooled_fresh
    said = f"the loss of {int(short.sum())} of {path.examples} images still rises in the last {last} of {path.m} steps"
    return _share(short, f"{said}, and they are not fooled", most="warn")


@behaviour("what fools the draws seen fools others", needs="trajectory")
def transfer_failure(evidence: Evidence) -> Answer:
    """Raised if more than 2 % of the images fool the draws of the last step and not fresh ones.
    Means: the attack fits the noise that it saw, not the network.
    Do: average over more draws n in each step.
    """
    path: TrajectoryRecord = evidence["trajectory"][0]
    apart = path.fooled_seen & ~path.fooled_fresh
    said = f"{int(apart.sum())} of {path.examples} images fool the draws of the last step and not fresh ones"
    return _share(apart, said, most="warn")


@behaviour("the gradient predicts the loss at the scale of the attack", needs="explained")
def explained(evidence: Evidence) -> Answer:
    """Raised if the gradient predicts too little of the change of the margin between an image and the ball's edge.
    Means: a part of the network hands on no gradient or a wrong one, so that attacks that follow it end too early.
    Do: attack a version in which that part hands its true slope on; the audit's surrogates try to be one.
    """
    return explanation(evidence["explained"], float(evidence["left"][0]), evidence.budget.tolerance)


@behaviour("gradients find what attacks without them find", needs="families")
def gradient_free(evidence: Evidence) -> Answer:
    """Raised if attacks without gradients, by queries or by transfer, break images that all with gradients missed.
    Means: gradients mislead, and a stronger attack without them would find more.
    Do: trust the lower number; attack a version without the steps that mask the gradient.
    """
    before, last = evidence["before_blind"], evidence.families[BLIND[-1]][-1]
    start, end = np.stack(before), np.stack(last.verdicts)
    lost, won = int((start.all(0) & ~end.any(0)).sum()), int((~start.any(0) & end.all(0)).sum())
    rare, p = lost / last.examples <= RARE, float(0.5 ** (lost - won)) if lost > won else 1.0
    verdict: Outcome = "pass" if lost == 0 else "warn" if rare or p > CONTRADICTED else "fail"
    queries = sum(int(r.cost_forwards.max()) for r in evidence.families["query"])
    said = f"of {int(start.all(0).sum())} images that gradients left right, substitutes and {queries} queries an image"
    return verdict, f"{said} break {lost}", {"only_blind": lost, "regained": won, "p": p, "queries": queries}


@behaviour("doubling each family of attacks gains nothing that matters", needs="families", decisive=("fail",))
def families(evidence: Evidence) -> Answer:
    """Raised if the last doubling of attacks on surrogates, by transfer or by queries gains over half the tolerance.
    Means: that family is not at its end, and the network is weaker than reported.
    Do: audit with a larger budget.
    """
    budget = evidence.budget
    doublings = doublings_of(evidence.families, budget.level)
    gains = ", ".join(
        f"{d.setting} {d.before} to {d.after}: {100 * d.gain:.1f} (at most {100 * d.bound:.1f})" for d in doublings
    )
    verdict: Outcome = "pass" if max(d.gain for d in doublings) <= budget.tolerance / 2 else "fail"
    return verdict, f"points gained by doubling: {gains}", {"doublings": [d._asdict() for d in doublings]}


@behaviour("a doubled budget gains nothing that matters", needs="doublings", decisive=("fail", "not enough evidence"))
def doubling(evidence: Evidence) -> Answer:
    """Raised if twice the draws, steps or restarts may gain more than the tolerance, by a bound of 95 %.
    Means: the attack has not converged, or there are too few images to show that it has.
    Do: take a larger budget, or more images; images_needed in the evidence says how many.
    """
    budget, first, doublings = evidence.budget, evidence["doubled"][0], evidence["doublings"]
    looks, tolerance = doublings[-1].look, f"{100 * budget.tolerance:.3g} points"
    last = [d for d in doublings if d.look == looks]
    bound = max(d.bound for d in last)
    gains = ", ".join(f"{d.setting} {d.before} to {d.after}: {100 * d.gain:+.1f}" for d in last)
    said = f"doubling {first.label} once more gains at most {100 * bound:.1f} points ({gains})"
    numbers: dict[str, Any] = {name: getattr(budget, name) for name in ("tolerance", "level", "images_needed")}
    numbers["doublings"] = [d._asdict() for d in doublings]
    if first.examples < budget.images_needed:
        few = f"{first.examples} images cannot show less than {tolerance}, {budget.images_needed} could"
        return "not enough evidence", f"{said}; {few}", numbers
    if bound <= budget.tolerance:
        return "pass", said, numbers
    settled = max(d.gain for d in last) <= budget.tolerance
    said += f", more than the tolerance of {tolerance} after {looks} of {budget.looks} looks"
    return "not enough evidence" if settled else "fail", said, numbers


def _ordering(deciding: Sequence[AttackComparison], telling: Sequence[AttackComparison]) -> Answer:
    """Fail if a deciding comparison is upside down, and warn if a telling one is."""
    wrong, odd = ([c for c in group if c.upside_down] for group in (deciding, telling))
    worst = (wrong or odd or list(deciding))[0]
    verdict: Outcome = "fail" if wrong else "warn" if odd else "pass"
    weaker, stronger = (f"{100 * share:.1f} % under" for share in worst.accuracies)
    said = f"{weaker} {worst.weaker}, {stronger} {worst.stronger}"
    said += f" ({worst.lost} examples fall to the second alone, {worst.won} to the first)"
    if verdict == "pass" and any(c.right[1] < MIN_FLIPS for c in deciding):
        verdict, said = "not enough evidence", said + TOO_FEW
    elif verdict == "pass" and worst.won > worst.lost and worst.lost + worst.won < MIN_FLIPS:
        verdict = "not enough evidence"
    return verdict, said, {"deciding": [c._asdict() for c in deciding], "telling": [c._asdict() for c in telling]}


def _graded(share: float, little: float, much: float) -> Outcome:
    """Pass up to the first share, warn up to the second."""
    return "pass" if share <= little else "warn" if share <= much else "fail"


def _share(flags: np.ndarray, said: str, most: Outcome = "fail") -> Answer:
    verdict = _graded(share := float(flags.mean()), RARE, OFTEN)
    return most if verdict == "fail" else verdict, said, {"share": share, "images": int(flags.sum())}


def _best(records: Iterable[AttackRecord]) -> AttackRecord:
    """Return the record of the strongest attack, as the first ensemble judges it."""
    return min(records, key=lambda record: record.accuracy)


def _title(record: AttackRecord) -> str:
    return f"{record.label} (m {record.m}" + (f", n {record.n})" if record.mode == "eot" else ")")
