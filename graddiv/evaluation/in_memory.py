"""Evaluate a network that the caller has in memory: the whole table, or the Total alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from torch import nn

from graddiv.attacks import Attack
from graddiv.attacks.registry import STRONG
from graddiv.evaluation.answers import answers_file, check_answers
from graddiv.evaluation.arguments import attacks_of, check_counts, epsilons_of, folder_of, warn_of
from graddiv.evaluation.batches import WorkListener, writing
from graddiv.evaluation.cell import MODES, cells, papers_cells, parse_modes
from graddiv.evaluation.elimination import attack_until_fooled
from graddiv.evaluation.examples import Images, Labels
from graddiv.evaluation.prediction import N_ENSEMBLE
from graddiv.evaluation.robustness import attack_all, strong_cells
from graddiv.evaluation.target import Target
from graddiv.networks import RandomizedNetwork
from graddiv.progress import listening
from graddiv.records import AttackRecord, Record, TotalRecord

R = TypeVar("R", bound=Record)


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

        records = evaluate(F, x, y, epsilon=[4 / 255, 8 / 255], attacks=["pgd", "apgd-ce"], modes="eot", n=5)
        for epsilon, rows in table_per_epsilon(records).items():
            for row in rows:
                print(epsilon, row.label, row.accuracy.mean, row.accuracy.interval)

    Returns an `AttackRecord` for each attack, mode, epsilon and repeat, and for clean images: whether each example was
    right, model by model, and what it cost.  `table` sums them up.  What would make the numbers mean something else
    than they seem to is told by a `GradDivWarning`; `graddiv.audit` looks more closely.

    F: a `RandomizedNetwork`, or a module, which is taken as deterministic.
    x, y: images with pixels in [0, 1] and labels, as tensors or arrays; or x is a data set or a DataLoader of both.
    epsilon: one radius or several.
    attacks: names such as "pgd" (`graddiv.attacks.registry.ATTACKS` lists them) or attacks themselves; those of the
        suite if there are none.
    suite_name: paper, published, quick or demo, which differ in iterations; or strong, which chooses modes and n.
    modes: how the adversary sees the network: "fixed" one draw, "eot1" a fresh one at each step, "eot" n of them.
    n: sample models at each step of "eot".
    repeats: how often everything is done, with other draws.
    n_ensemble: the sample models, never seen by an attack, that judge.
    seed: of everything random.
    batch: how many images are looked at together.
    directory: where records are kept, so that the same call again computes only what is missing; nowhere if None.
        A network that answers otherwise than the one they are of is refused.
    progress: whether to show a bar, or a function that is told of the progress.
    """
    return _evaluated(
        attack_all, F, x, y, epsilon=epsilon, attacks=attacks, suite_name=suite_name, modes=modes, n=n,
        repeats=repeats, n_ensemble=n_ensemble, seed=seed, batch=batch, directory=directory, progress=progress,
    )  # fmt: skip


def evaluate_total(
    F: RandomizedNetwork | nn.Module,
    x: Images,
    y: Labels = None,
    *,
    epsilon: float | Sequence[float],
    attacks: str | Attack | Sequence[str | Attack] = (),
    suite_name: str = "quick",
    modes: str | Sequence[str] = MODES,
    paper_rows: bool = False,
    n: int = 10,
    repeats: int = 1,
    n_ensemble: int = N_ENSEMBLE,
    seed: int = 0,
    batch: int = 100,
    directory: Path | str | None = None,
    progress: bool | WorkListener = False,
) -> list[TotalRecord]:
    """The Totals of a network in memory, one for each epsilon and repeat; the arguments are those of `evaluate`.

        (record,) = evaluate_total(F, x, y, epsilon=8 / 255)
        print(record.correct.mean(), record.passes.sum(1).mean())

    paper_rows: whether the Total is taken over the paper's 16 rows alone.  It leaves out Square, EOT-FAB and EOT-B&B,
        which take most of the passes of the paper's suite.
    """
    return _evaluated(
        attack_until_fooled, F, x, y, epsilon=epsilon, attacks=attacks, suite_name=suite_name, modes=modes, n=n,
        repeats=repeats, n_ensemble=n_ensemble, seed=seed, batch=batch, directory=directory, progress=progress,
        paper_rows=paper_rows,
    )  # fmt: skip


def _evaluated(
    how: Callable[..., list[R]],
    F: RandomizedNetwork | nn.Module,
    x: Images,
    y: Labels,
    *,
    epsilon: float | Sequence[float],
    attacks: str | Attack | Sequence[str | Attack],
    suite_name: str,
    modes: str | Sequence[str],
    n: int,
    repeats: int,
    n_ensemble: int,
    seed: int,
    batch: int,
    directory: Path | str | None,
    progress: bool | WorkListener,
    paper_rows: bool = False,
) -> list[R]:
    """What `how` makes of the cells that the arguments, once they are checked, ask for."""
    check_counts(n=n, repeats=repeats, n_ensemble=n_ensemble, batch=batch)
    target = Target.of(F, x, y, n_ensemble=n_ensemble, seed=seed, batch=batch)
    chosen = attacks_of(attacks, suite_name)
    radii = epsilons_of(epsilon, chosen, target.pixels)
    sights = parse_modes([modes] if isinstance(modes, str) else modes)
    folder = folder_of(directory)
    warn_of(target)
    with writing(folder), listening(progress) as listener:
        if folder is not None:
            check_answers(target, answers_file(target, folder))
        if suite_name == STRONG and not attacks:
            wanted = strong_cells(target, radii, repeats=repeats, directory=folder, progress=listener)
        else:
            wanted = cells(chosen, radii, modes=sights, n=n, repeats=repeats, random=target.random)
        wanted = papers_cells(wanted, target) if paper_rows else wanted
        return how(target, wanted, folder, progress=listener)
