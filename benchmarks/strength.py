"""Robust accuracy that attacks leave at equal passes, on the two shipped networks (Adv-BNN and Adv-BNN + GradDiv).

A pass is a forward and a backward of one sample model over an image; an attack that needs forwards alone, such as the
acceptance tests of ARC, pays half a pass for each.  Every result is a record below --out, judged by two ensembles of 20
models that no attack saw, so that the command can be stopped and goes on where it was.

strong/eot_pgd: robust accuracy under `strong` over that under EOT-PGD, at 400 passes.
passes_to_match/eot_pgd: the share of EOT-PGD's 400 passes at which `strong` leaves no higher accuracy.
exhaustive/strong: the cross-fitted Total of every contestant over that of `strong`, at 400 passes each.
accuracy ...: what each contestant leaves right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import parser, report
from graddiv.attacks import APGD, ARC, PGD, Attack, Square, StochasticPGD
from graddiv.attacks.peers import PEERS, PeerAttack, peers
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell, Target, attack_cell, target_of
from graddiv.evaluation.robustness import strong_plan
from graddiv.evaluation.run import Session
from graddiv.performance import keep_memory
from graddiv.records import AttackRecord, accuracy, cross_fitted_total, flips
from graddiv.runs import Run

NETWORKS = {name: Path("graddiv/paper/shipped") / name for name in ("adv-bnn", "adv-bnn+graddiv")}
EPSILON = {"adv-bnn": 0.38, "adv-bnn+graddiv": 0.34}
"""Where EOT-PGD leaves about a third of the digits right."""

STRONG = ("spgd", "spgd_ce")
"""The suite `strong` on networks with infinitely many models."""

PASSES = 400
LONGER = 1600
SHORTER = (25, 50, 100, 200)
"""Budgets at which `strong` is looked for EOT-PGD's accuracy."""


@dataclass(frozen=True)
class Contestant:
    """An attack and the models it sees at an iteration."""

    attack: Attack
    n: int

    def record(self, target: Target, epsilon: float, out: Path) -> AttackRecord:
        return attack_cell(target, Cell(self.attack, "eot", self.n, epsilon, 0), Session(out))


def _installed(library: str) -> list[PeerAttack]:
    try:
        return peers([library], "quick", m=20)
    except GradDivError as missing:
        print(f"  without {library}: {missing}")
        return []


def contestants(n: int, passes: int) -> dict[str, Contestant]:
    """Everything there is, at the same passes; n models at an iteration where the attack leaves it open."""
    m = passes // n

    def spgd(count: int = n, steps: int = 1, **settings: object) -> Contestant:
        return Contestant(StochasticPGD(m=max(1, passes // count // steps), **settings), count)  # type: ignore[arg-type]

    members = 5
    return {
        "eot_pgd": Contestant(PGD(m=20), passes // 20),
        "eot_pgd_margin": Contestant(PGD(m=20, objective="margin"), passes // 20),
        "eot_apgd": Contestant(APGD(m=20), passes // 20),
        "square": Contestant(Square(m=2 * passes // 20), 20),
        "spgd": spgd(),
        "spgd_n1": spgd(1),
        "spgd_n10": spgd(10),
        **{f"spgd_{name}": spgd(objective=name) for name in ("ce", "ensemble")},
        "spgd_aggmo": spgd(memory="aggmo"),
        "spgd_constant": Contestant(PGD(m=m, alpha=0.5, objective="margin"), n),
        "spgd_two_starts": spgd(steps=2, restarts=2),
        # a step of ARC costs 2 k + k^2 forwards and k backwards of its k members
        **{
            label: Contestant(peer, passes // 20)
            for library in PEERS
            for peer in _installed(library)
            if (label := f"{library} {peer.algorithm.lower()}")
        },
        "arc": Contestant(ARC(m=max(1, 2 * passes // (members**2 + 3 * members))), members),
    }


def compare(name: str, examples: int, out: Path, wanted: Sequence[str] = ()) -> dict[str, float]:
    """The ratios of one network; prints every contestant's accuracy."""
    run = Run(NETWORKS[name])
    experiment = run.experiment
    target = target_of(experiment, run.network(None), data="mnist-mini", examples=examples)
    epsilon, out = EPSILON[name], out / name
    plan = strong_plan(target, epsilon, PASSES)
    print(f"{name}, epsilon {epsilon}, {examples} digits, {PASSES} passes; n = {plan.n} from the pilot", flush=True)

    def left(contestant: Contestant, label: str) -> AttackRecord:
        record = contestant.record(target, epsilon, out)
        spent = (record.cost_forwards[0] + record.cost_backwards[0]) / 2
        found, draw = accuracy([record]), record.accuracy_per_draw
        print(f"  {label:<24}{100 * found.mean:5.1f} %  per draw {100 * draw:5.1f} %  {spent:.0f} passes", flush=True)
        return record

    every = contestants(plan.n, PASSES)
    records = {label: left(every[label], label) for label in wanted or every}
    for label, record in records.items():
        lost, won, p = flips(records["spgd"].correct, record.correct)
        print(f"  spgd against {label}: {won} digits fall to spgd alone, {lost} to {label} alone (p = {p:.2g})")
    longer = {
        f"{label}, {LONGER} passes": left(each, f"{label}, {LONGER} passes")
        for label, each in contestants(strong_plan(target, epsilon, LONGER).n, LONGER).items()
        if label in ("eot_pgd", "spgd") and not wanted
    }
    shorter = {passes: contestants(strong_plan(target, epsilon, passes).n, passes)["spgd"] for passes in SHORTER}
    reached = accuracy([records["eot_pgd"]]).mean
    match = next(
        (p for p, each in shorter.items() if accuracy([left(each, f"spgd, {p} passes")]).mean <= reached), PASSES
    )
    strong = _total([records[label] for label in STRONG if label in records])
    return {
        f"strong/eot_pgd {name}": strong / reached,
        f"passes_to_match/eot_pgd {name}": match / PASSES,
        f"exhaustive/strong {name}": _total(list(records.values())) / strong,
        f"accuracy strong {name}": strong,
        **{f"accuracy {label} {name}": accuracy([r]).mean for label, r in (records | longer).items()},
    }


def _total(records: Sequence[AttackRecord]) -> float:
    """The cross-fitted Total, over both ways of choosing and scoring."""
    return sum(float(verdict.mean()) for verdict in cross_fitted_total(records)) / 2


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--examples", type=int, help="digits attacked; 200, or 20 with --quick")
    options.add_argument("--out", type=Path, default=Path("runs/strength"), help="where the records go")
    chosen = options.parse_args()
    keep_memory()
    examples = chosen.examples or (20 if chosen.quick else 200)
    wanted = ("eot_pgd", "spgd") if chosen.quick else ()
    ratios: dict[str, float] = {}
    for name in NETWORKS:
        ratios |= compare(name, examples, chosen.out / str(examples), wanted)
    report(ratios, chosen.json)


if __name__ == "__main__":
    main()
