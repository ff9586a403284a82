"""Do adversarial images of one sample model fool the others?

In the paper: docs/equations.md.
"""

from pathlib import Path

import torch
from torch import Tensor

from graddiv.attacks import PGD, Given
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import count_models, models_of
from graddiv.evaluation.target import Target
from graddiv.networks import running_statistics
from graddiv.records import TransferRecord
from graddiv.seeding import fold

MODELS = 50
"""How many sample models the paper's transfer matrix has."""


def transfer_job(
    target: Target,
    directory: Path | None = None,
    *,
    epsilon: float,
    k: int = MODELS,
    m: int = 20,
) -> Job[TransferRecord]:
    """right[., i, j] = whether f_j is right on the image that PGD made to fool f_i.

    Each model is attacked once, and bound once more to judge the images of all others: k attacks, 2k draws of noise,
    and one model in memory at a time.  The record's `accuracies` sum the matrix up.

    target: the network, which must be random, and its examples.
    directory: where the record is stored; None for nowhere.
    epsilon: the l_inf radius of PGD.
    k: how many sample models; at least 2.  A network of fewer, all equally likely, has each once in the matrix.
    m: iterations of PGD.
    """
    if not target.random or k < 2:
        raise GradDivError(
            f"a transfer matrix of {k if target.random else 1} models has nothing off its diagonal: "
            "expected a randomized network and k of 2 or more"
        )
    attack, seed = PGD(m=m), fold(target.seed, "transfer")
    settings = {"k": k, "epsilon": epsilon, "m": m, "alpha": attack.alpha}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        sources, right = [], []
        with running_statistics(target.F), torch.no_grad():
            for i, f in enumerate(models_of(target.F, k, seed)):
                sources.append(attack(Given([f]), x, y, epsilon, ids=ids))
                advance(share * (i + 1) / models)
            for j, f in enumerate(models_of(target.F, k, seed)):
                # in the batches in which they were attacked: a foreign sample model may depend on the batch
                right.append(torch.stack([f(x_adv).argmax(1) == y for x_adv in sources], 1))
                advance(share + (1 - share) * (j + 1) / models)
        return {"right": torch.stack(right, 2)}

    models = count_models(target.F, k)
    work = 2.0 * models * m + models * models
    share = 2.0 * models * m / work
    return target.job(TransferRecord, settings, directory, measure, work=work)
