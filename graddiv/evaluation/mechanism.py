"""Measurements that ask where robustness beyond the radius of training comes from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from graddiv.attacks import EOT, PGD
from graddiv.diversity.concentration import moments_of
from graddiv.diversity.gradients import input_gradient
from graddiv.errors import GradDivError
from graddiv.evaluation.measurements import measurement
from graddiv.evaluation.run import Advance, Job, reporting
from graddiv.evaluation.target import Target
from graddiv.losses import soft_margin
from graddiv.networks import running_statistics
from graddiv.networks.prediction import models_of, predict
from graddiv.records.mechanism import ContrastRecord, FiltersRecord
from graddiv.seeding import fold

DISTANCES = (0.0, 0.1, 0.2, 0.26, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4, 0.42, 0.45)  #: At 0.5 every image is gray.


@measurement("contrast", ContrastRecord, lambda budget: {"n": max(budget.curve_n)})
def contrast_job(target: Target, *, n: int = 20, distances: Sequence[float] = DISTANCES) -> Job[ContrastRecord]:
    """Judge d + (1 - 2d) x, images of less and less contrast, with the same n sample models."""

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        margins, right = [], []
        for d in reporting(distances, len(distances), advance):
            with torch.no_grad(), running_statistics(target.F):
                models = models_of(target.F, n, fold(target.seed, "contrast"))
                z = torch.stack([f(d + (1 - 2 * d) * x).double() for f in models])
            margins.append(torch.stack([soft_margin(each, y) for each in z]).mean(0))
            right.append(z.softmax(2).mean(0).argmax(1) == y)
        return {"margin": torch.stack(margins, 1).float(), "right": torch.stack(right, 1)}

    settings = {"n": n, "distances": list(distances)}
    return target.job(ContrastRecord, settings, measure, work=float(n * len(distances)))


@measurement("filters", FiltersRecord, lambda budget: {"n": budget.n, "m": budget.m}, on_request=True)
def filters_job(target: Target, *, epsilon: float, n: int = 10, m: int = 20) -> Job[FiltersRecord]:
    """Attack the network whole and without each filter of its first layer, and compare n gradients at the image."""
    layer = first_convolution(target.F.module)
    networks = [None, *range(layer.out_channels)]
    attack, seed = PGD(m=m), fold(target.seed, "filters")

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        cosines, right = [], []
        for number in reporting(networks, len(networks), advance):
            with without_filter(layer, number):
                with running_statistics(target.F):
                    pairs = [input_gradient(f, x, y) for f in models_of(target.F, n, fold(seed, "gradients"))]
                cosines.append(moments_of(pairs).mean_cosine())
                x_adv = attack(EOT(target.F, n, fold(seed, "view")), x, y, epsilon, ids=ids)
                right.append(predict(target.F, x_adv, n=target.n_ensemble, seed=fold(seed, "judge")).label == y)
        return {"mean_cosine": torch.stack(cosines, 1), "right": torch.stack(right, 1)}

    settings = {"n": n, "m": m, "epsilon": epsilon}
    return target.job(FiltersRecord, settings, measure, work=2.0 * n * (m + 1) * len(networks))


def first_convolution(module: nn.Module) -> nn.Conv2d:
    """The first convolution of a network, in the order of its layers."""
    found = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    if found is None:
        raise GradDivError(f"{type(module).__name__} has no convolution, expected one: filters are those of the first")
    return found


@contextmanager
def without_filter(layer: nn.Conv2d, number: int | None) -> Iterator[None]:
    """Set the output of one filter to 0, whatever its weights are drawn to be; of none if the number is None."""

    def silence(layer: nn.Module, arguments: object, output: Tensor) -> Tensor:
        keep = torch.ones(output.shape[1], dtype=output.dtype, device=output.device)
        keep[number] = 0
        return output * keep[:, None, None]

    hook = None if number is None else layer.register_forward_hook(silence)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
