"""Evaluate a network that the caller has in memory: one function."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from graddiv.attacks import Attack
from graddiv.attacks.registry import STRONG
from graddiv.evaluation.arguments import attacks_of, check_counts, epsilons_of, folder_of, warn_of
from graddiv.evaluation.batches import WorkListener, writing
from graddiv.evaluation.cell import MODES, cells, parse_modes
from graddiv.evaluation.examples import Images, Labels
from graddiv.evaluation.prediction import N_ENSEMBLE
from graddiv.evaluation.robustness import attack_all, strong_cells
from graddiv.evaluation.target import Target
from graddiv.networks import RandomizedNetwork
from graddiv.progress import listening
from graddiv.records import AttackRecord


def evaluate(
    F: RandomizedNetwork | nn.Module,
    x: Images,
    y: Labels = None,
    *,
    epsilon: float | Sequence[float],
    attacks: str | Attack | Sequence[str | Attack] = (),
    suite_name: str = "quick",
    modes: str | Sequence[str] = MODES,
    n: int = 10,
    repeats: int = 1,
    n_ensemble: int = N_ENSEMBLE,
    seed: int = 0,
    batch: int = 100,
    directory: Path | str | None = None,
    progress: bool | WorkListener = False,
) -> list[AttackRecord]:
    """The records of a network in memory, on tensors or arrays x and y, a data set, or a DataLoader.

        records = evaluate(F, x, y, epsilon=8 / 255, attacks=["pgd", "apgd-ce"], repeats=3, progress=True)
        for epsilon, rows in table_per_epsilon(records).items():
            for row in rows: print(epsilon, row.label, row.accuracy)

    The suite "strong" chooses its modes and n itself.  What would make the numbers mean something else than they seem
    to is told by a `GradDivWarning`; `graddiv.audit` looks more closely.
    """
    check_counts(n=n, repeats=repeats, n_ensemble=n_ensemble, batch=batch)
    target = Target.of(F, x, y, n_ensemble=n_ensemble, seed=seed, batch=batch)
    chosen = attacks_of(attacks, suite_name)
    radii = epsilons_of(epsilon, chosen, target.pixels)
    how = parse_modes([modes] if isinstance(modes, str) else modes)
    warn_of(target)
    folder = folder_of(directory)
    with writing(folder), listening(progress) as listener:
        if suite_name == STRONG and not attacks:
            wanted = strong_cells(target, radii, repeats=repeats, directory=folder, progress=listener)
        else:
            wanted = cells(chosen, radii, modes=how, n=n, repeats=repeats, random=target.random)
        return attack_all(target, wanted, folder, progress=listener)
