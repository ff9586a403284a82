"""Attacks x modes x epsilons x repeats, judged on models the attack never saw: a record for each cell, or the Total.

The Total alone takes fewer passes.  Attacks run one after the other, the cheapest first; after each, two ensembles keep
the worst image so far, and an image that is fooled beyond doubt leaves.  Two other ensembles judge what is left.
In the paper: docs/equations.md.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from graddiv.attacks import ARC, EOT, Attack, Cost, Exact, Fixed, Held, StochasticPGD, View
from graddiv.attacks.spgd import FEWEST_STEPS, Spending, choose
from graddiv.attacks.suites import ATTACKS, STRONG, suite
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.budget import Budget, with_geometry
from graddiv.evaluation.jobs import gradient_noise_job
from graddiv.evaluation.run import IN_MEMORY, Advance, Job, Session
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, Geometry
from graddiv.losses import margin
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.networks.prediction import logits_from, models_of, predict, score
from graddiv.performance import channels_last
from graddiv.records import PAPER_ROWS, AttackRecord, TotalRecord
from graddiv.records.record import PILOTS
from graddiv.seeding import fold
from graddiv.store import digest

Mode = Literal["fixed", "eot1", "eot", "held"]
MODES: tuple[Mode, ...] = ("fixed", "eot1", "eot")
PASSES = Budget().passes  #: Forward and backward passes of each attack of the strong suite on an image.
PILOT_EXAMPLES = 50  #: Examples, the first ones, on which the pilot of the strong suite is run.
#: An image leaves the Total when a fresh ensemble would be right about it with a probability below this.
#: The same models look at the images of all attacks, so each look may err with this probability divided by the looks.
LEVEL = 1e-2


@dataclass(frozen=True, eq=False)
class SourceNetwork:
    """Another network, which a transfer attack attacks instead of the one that is judged."""

    name: str  #: Stands in labels and file names, such as substitute.
    F: RandomizedNetwork


@dataclass(frozen=True)
class Cell:
    """One evaluation: an attack through a view at an epsilon, in one repeat."""

    attack: Attack | None  #: None: clean images.
    mode: Mode
    n: int
    epsilon: float
    repeat: int
    source: SourceNetwork | None = None  #: None: the adversary sees the network that is judged.

    def __post_init__(self) -> None:
        """Give each mode one name: EOT with a single model is EOT^1."""
        if self.mode == "eot" and self.n == 1:
            object.__setattr__(self, "mode", "eot1")
        if self.mode != "eot":
            object.__setattr__(self, "n", 1)

    def view(self, F: RandomizedNetwork, seed: int) -> View:
        """The adversary's view; repeats see other models."""
        F, address = self.source.F if self.source else F, fold(seed, "view", self.repeat)
        if self.mode == "fixed":
            return Fixed(F, address)
        if self.mode == "held":
            return Held(F, self.n, address)
        support = F.support() if self.mode == "eot" and F.random else None
        return EOT(F, self.n, address) if support is None or len(support.noises) > self.n else Exact(F)

    def label(self, F: RandomizedNetwork) -> str:
        if self.attack is None:
            return "clean"
        label = self.attack.label(self.view(F, 0))
        return f"{label} on the {self.source.name}" if self.source else label

    def seeded(self, seed: int) -> Attack | None:
        """The attack with its seed for this repeat."""
        return self.attack and replace(self.attack, seed=fold(seed, "attack", self.repeat))

    def describe(self, target: Target) -> dict[str, Any]:
        """The description of the attack and its view in the record."""
        attack, source = self.seeded(target.seed), {"source": self.source.name} if self.source else {}
        m, restarts = (attack.iterations, attack.restarts) if attack else (0, 0)
        about = {"label": self.label(target.F), "attack": attack and _settings(attack), **source}
        return {**about, "mode": self.mode, "n": self.n, "m": m, "restarts": restarts}

    def work(self, target: Target) -> float:
        """Approximate forward passes for a batch: the attack's steps on n models, and two ensembles that judge."""
        judging, n = (2.0 * target.n_ensemble, self.n) if target.random else (2.0, 1)
        if self.attack is None:
            return judging
        return judging + self.attack.passes_per_iteration * self.attack.iterations * self.attack.runs * n

    @property
    def file_name(self) -> str:
        """The name of the record, which tells cells of one directory apart."""
        if self.attack is None:
            return f"clean-r{self.repeat}.record"
        steps = f"m{self.attack.iterations}" + (f"x{self.attack.restarts}" if self.attack.restarts > 1 else "")
        sight = f"eot{self.n}" if self.mode == "eot" else self.mode
        seen = f"-{_slug(self.source.name)}" if self.source else ""
        return f"{_file_name(self.attack)}-{sight}{seen}-{steps}-eps{self.epsilon:.6g}-r{self.repeat}.record"


def parse_modes(names: Sequence[str]) -> list[Mode]:
    """Modes by name."""
    if not names:
        raise GradDivError(f"there are 0 modes, expected at least one of {', '.join(MODES)}")
    if odd := [name for name in names if name not in MODES]:
        raise unknown("mode", odd[0], MODES)
    return [mode for mode in MODES if mode in names]


def cells(
    attacks: Iterable[Attack], epsilons: float | Sequence[float], *, modes: Sequence[Mode] = MODES, n: int = 10,
    repeats: int = 1, random: bool = True,
) -> list[Cell]:  # fmt: skip
    """Clean images and every combination, once for each repeat; a deterministic network has one mode only."""
    if repeats < 1:
        raise GradDivError(f"repeats is {repeats}, expected at least 1")
    radii, found = [epsilons] if isinstance(epsilons, int | float) else epsilons, list[Cell]()
    attacked = list(product(radii, attacks, modes if random else MODES[:1]))
    for repeat in range(repeats):
        found.append(Cell(None, "fixed", 1, 0.0, repeat))
        found += [Cell(attack, mode, n, epsilon, repeat) for epsilon, attack, mode in attacked]
    return list(dict.fromkeys(found))


def papers_cells(wanted: Iterable[Cell], target: Target) -> list[Cell]:
    """The cells among the 16 rows of the paper's Total, and clean images."""
    found = [cell for cell in wanted if cell.attack is None or cell.label(target.F) in PAPER_ROWS]
    if all(cell.attack is None for cell in found):
        raise GradDivError(f"none of the attacks is among the paper's rows, expected some of {', '.join(PAPER_ROWS)}")
    return found


def strong_cells(
    target: Target, epsilons: Sequence[float], session: Session = IN_MEMORY, *, passes: int = PASSES, repeats: int = 1,
    geometry: Geometry = LINF,
) -> list[Cell]:  # fmt: skip
    """Clean images and the strong suite, plus ARC if the noise has few values; a pilot splits `passes` into n and m."""
    support = target.F.support() if target.random else None
    found = cells([], [], repeats=repeats)
    for epsilon in epsilons:
        if support is not None and len(support.noises) <= passes // FEWEST_STEPS:
            plan = Spending(len(support.noises), passes // len(support.noises))
            more: list[Attack] = [ARC(m=max(1, 2 * passes // (plan.n**2 + 3 * plan.n)), redraw=passes)]
        else:
            plan, more = strong_plan(target, epsilon, passes, session, geometry), []
        chosen = with_geometry([*strong_attacks(plan), *more], geometry)
        found += cells(chosen, epsilon, modes=["eot"], n=plan.n, repeats=repeats, random=target.random)
    return list(dict.fromkeys(found))


def strong_plan(
    target: Target, epsilon: float, passes: int = PASSES, session: Session = IN_MEMORY, geometry: Geometry = LINF
) -> Spending:
    """Choose how many models an iteration sees, by a pilot on the first examples, whose record has its own folder."""
    if passes < 1:
        raise GradDivError(f"passes is {passes}, expected at least 1")
    return choose(pilot(target, epsilon, session, geometry)[1], passes) if target.random else Spending(1, passes)


def pilot(target: Target, epsilon: float, session: Session, geometry: Geometry) -> tuple[float, float]:
    """The medians of rho and q of the gradients at the end of a short attack on the first examples."""
    few = target.take(slice(0, PILOT_EXAMPLES))
    [record] = session.run([gradient_noise_job(few, epsilon=epsilon, geometry=geometry).below(PILOTS)])
    return float(np.median(record.rho[:, 1])), float(np.median(record.q[:, 1]))


def strong_attacks(plan: Spending) -> list[Attack]:
    """The attacks of the strong suite that take gradients, with the steps of a plan."""
    found = (attack for attack in suite(STRONG) if isinstance(attack, StochasticPGD))
    return [replace(a, m=plan.m, memory="aggmo" if plan.starved else a.memory) for a in found]


def attack_job(target: Target, cell: Cell) -> Job[AttackRecord]:
    """Attack, then judge on two ensembles of fresh models, the same for all attacks of a repeat."""
    settings = {**cell.describe(target), "epsilon": cell.epsilon, "repeat": cell.repeat}
    kept = target.data.ids[: target.kept_images]

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        x_adv, distance, cost = attacked(target, cell, x, y, ids, advance)
        images = x_adv[torch.isin(ids, kept.to(ids.device))]
        spent = {f"cost_{name}": torch.full_like(y, value) for name, value in asdict(cost).items()}
        return {"distance": distance, "images": images, **spent, **judged(target, x_adv, y, cell.repeat)}

    work, label = cell.work(target), settings["label"]
    return target.job(AttackRecord, settings, measure, work=work, file=cell.file_name, label=label)


def attacked(
    target: Target, cell: Cell, x: Tensor, y: Tensor, ids: Tensor, advance: Advance, start: Tensor | None = None
) -> tuple[Float[Tensor, "b ..."], Float[Tensor, " b"], Cost]:
    """The images that a cell makes of these examples, their distances in its norm, and what each image cost."""
    view, x_adv, attack = cell.view(target.F, target.seed), x, cell.seeded(target.seed)
    if attack:
        x_adv = attack(view, x, y, cell.epsilon, ids=ids, start=start, progress=lambda done, of: advance(done / of))
    norm = attack.geometry if attack else LINF
    return x_adv, norm.norm(x_adv - x).float(), view.cost


def attack_cell(target: Target, cell: Cell, session: Session = IN_MEMORY) -> AttackRecord:
    """The record of one cell."""
    return attack_all(target, [cell], session)[0]


def attack_all(target: Target, wanted: Sequence[Cell], session: Session = IN_MEMORY) -> list[AttackRecord]:
    """The record of every cell."""
    return session.run([attack_job(target, cell) for cell in wanted])


def judged(target: Target, x: Tensor, y: Tensor, repeat: int) -> dict[str, Tensor]:
    """The verdicts of the two ensembles of a repeat on x, and of each model of the first."""
    seeds = [fold(target.seed, "ensemble", repeat, i) for i in range(2)]
    said, again = (predict(target.F, x, n=target.n_ensemble, seed=seed) for seed in seeds)
    margins = {"margin": margin(said.scores.double().log(), y), "margin_again": margin(again.scores.double().log(), y)}
    return {"correct": said.label == y, "correct_again": again.label == y, "right": (said.answers == y).T, **margins}


def attack_until_fooled(target: Target, wanted: Sequence[Cell], session: Session = IN_MEMORY) -> list[TotalRecord]:
    """The Total of the cells of each epsilon and repeat."""
    attacked = [cell for cell in wanted if cell.attack is not None]
    groups = dict.fromkeys((cell.epsilon, cell.repeat) for cell in attacked)
    return session.run([total_job(target, [c for c in attacked if (c.epsilon, c.repeat) == at]) for at in groups])


def total_job(target: Target, wanted: Sequence[Cell]) -> Job[TotalRecord]:
    """Attack each batch with one cell after the other, on the images that are left; then judge the worst images."""
    if len({(cell.epsilon, cell.repeat) for cell in wanted}) != 1:
        raise GradDivError("a Total is taken over the attacks of one epsilon and one repeat")
    epsilon, repeat = wanted[0].epsilon, wanted[0].repeat
    order = [Cell(None, "fixed", 1, 0.0, repeat), *sorted(wanted, key=lambda cell: cell.work(target))]
    attacks = [cell.describe(target) for cell in order]
    settings = {"attacks": attacks, "epsilon": epsilon, "repeat": repeat, "level": LEVEL}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        worst, found = _worst_images(target, order, x, y, ids, advance)
        return {**found, **judged(target, worst, y, repeat)}

    file = f"total-{digest(json.dumps(attacks))[:8]}-eps{epsilon:.6g}-r{repeat}.record"
    work = sum(cell.work(target) for cell in order)
    return target.job(TotalRecord, settings, measure, work=work, file=file, label="Total")


def _worst_images(
    target: Target, order: Sequence[Cell], x: Tensor, y: Tensor, ids: Tensor, advance: Advance
) -> tuple[Tensor, dict[str, Tensor]]:
    """Attack the examples that are left with one cell after the other; return the worst images, and the arrays."""
    worst, distance = x.clone(), torch.zeros_like(y, dtype=torch.float32)
    surest = torch.full_like(y, -torch.inf, dtype=torch.float64)
    chosen, ended = torch.zeros_like(y), torch.zeros_like(y, dtype=torch.bool)
    costs = torch.zeros(4, len(y), len(order), dtype=torch.int64)
    work = [cell.work(target) for cell in order]
    for number, cell in enumerate(order):
        left = ~ended
        if not left.any():
            break

        def tell(share: float, number: int = number) -> None:
            advance((sum(work[:number]) + share * work[number]) / sum(work))

        # the rows of a network that is not pointwise depend on each other, so its batches stay whole
        rows = (left if target.F.pointwise else torch.ones_like(left)).nonzero().squeeze(1)
        x_adv, far, cost = attacked(target, cell, channels_last(x[rows]), y[rows], ids[rows], tell)
        sure, doubtless, models = _looked_at(target, x_adv, y[rows], cell.repeat, looks=len(order))
        better = left[rows] & ((sure > surest[rows]) | doubtless)
        kept = rows[better]
        worst[kept], distance[kept] = x_adv[better], far[better]
        surest[kept], chosen[kept] = sure[better], number
        ended[rows] |= doubtless
        spent = [cost.forwards, cost.backwards, cost.draws, models]
        costs[:, rows.cpu(), number] = torch.tensor(spent)[:, None]
    names = ("cost_forwards", "cost_backwards", "cost_draws", "cost_choice")
    found = dict(zip(names, costs, strict=True))
    return worst, {"chosen": chosen, "ended": ended, "distance": distance, **found}


def choosing(target: Target, x: Tensor, repeat: int) -> Float64[Tensor, "two n b c"]:
    """The probabilities by the members of two ensembles that choose the worst attack, and judge no image."""
    seeds = [fold(target.seed, "choice", repeat, i) for i in range(2)]
    with torch.no_grad(), running_statistics(target.F):
        models = [models_of(target.F, target.n_ensemble, seed) for seed in seeds]
        return torch.stack([torch.stack([score(logits_from(f, x), "softmax") for f in each]) for each in models])


def _looked_at(
    target: Target, x: Tensor, y: Tensor, repeat: int, looks: int
) -> tuple[Float64[Tensor, " b"], Bool[Tensor, " b"], int]:
    """Return the sureness of two ensembles, whether they are wrong beyond doubt, and how many models were asked."""
    ensembles = choosing(target, x, repeat)
    both = ensembles.flatten(0, 1)
    sure = sureness(both, y, ensembles.shape[1])
    wrong = (ensembles.mean(1).argmax(2) != y).all(0)
    return sure, wrong & (sure > sure_enough(len(both), looks)), len(both)


def sureness(p: Float64[Tensor, "n b c"], y: Int64[Tensor, " b"], size: int) -> Float64[Tensor, " b"]:
    """t = mean(d) / (sd(d) sqrt(1/n + 1/size)), d_i = p_i(j) - p_i(y), j the likeliest other class.

    The denominator is the standard error of the mean d of a fresh ensemble of `size` models, as n models predict it: if
    t lies above Student's quantile, that ensemble is wrong too.  Infinite where all models say the same.
    """
    others, rows = p.clone(), torch.arange(len(y), device=y.device)
    others[:, rows, y] = -torch.inf
    rival = others.mean(0).argmax(1)
    d = others[:, rows, rival] - p[:, rows, y]
    mean, spread = d.mean(0), d.std(0) * (1 / len(d) + 1 / size) ** 0.5
    return torch.where(spread > 0, mean / spread, torch.where(mean > 0, torch.inf, -torch.inf))


def sure_enough(n: int, looks: int) -> float:
    """The quantile 1 - LEVEL / looks of Student's t for n models: beyond it, an image is fooled beyond doubt."""
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / looks, n - 1))


def _settings(attack: Attack) -> dict[str, Any]:
    values = {field.name: getattr(attack, field.name) for field in fields(attack) if field.name != "geometry"}
    if not attack.targets:  # as in records from before there were targets
        del values["targets"]
    norm = {"norm": type(attack.geometry).__name__, "bounds": list(attack.geometry.bounds)}
    return {"name": attack.name, **norm, **attack.former_settings, **values}


def _file_name(attack: Attack) -> str:
    """The attack's name, and its settings that differ from those of the suites."""
    registered = (each.attack for each in ATTACKS.values())
    usual = next((a for a in registered if type(a) is type(attack) and a.name == attack.name), type(attack)())
    settings = [field.name for field in fields(attack) if field.name not in ("m", "samples", "restarts", "seed")]
    changed = {key: getattr(attack, key) for key in settings if getattr(attack, key) != getattr(usual, key)}
    if "geometry" in changed:
        changed["geometry"] = attack.geometry.name
    return "-".join([_slug(attack.name), *(f"{key}={_slug(str(value))}" for key, value in changed.items())])


def _slug(name: str) -> str:
    return name.lower().replace("&", "").translate(str.maketrans(" _", "--"))
