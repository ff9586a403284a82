"""How accuracy grows with the number of sample models in the ensemble."""

from pathlib import Path

from torch import Tensor

from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import accuracy_by_size
from graddiv.evaluation.target import Target
from graddiv.records import EnsembleSizeRecord
from graddiv.seeding import fold


def ensemble_size_job(target: Target, directory: Path | None = None, *, n: int = 100) -> Job[EnsembleSizeRecord]:
    """right[., i] = whether the ensemble of the first i + 1 sample models is right on the clean image.

    The models are those that judge the first repeat of an attack, so that the accuracy at i + 1 = n_ensemble is the
    clean accuracy in the table.
    """
    seed = fold(target.seed, "ensemble", 0, 0)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        return {"right": accuracy_by_size(target.F, x, y, n, seed).T}

    return target.job(EnsembleSizeRecord, {"n": n}, directory, measure, work=float(n))
