import gc
import weakref

import pytest
import torch

from graddiv import GradDivError
from graddiv.directions import vmf
from graddiv.directions.gradients import directions, input_gradient
from graddiv.directions.moments import moments
from graddiv.directions.regularizers import mean_cosine
from tests.helpers import STOCHASTIC, images, labels, network


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_running_sums_equal_the_statistics_of_all_gradients_at_once(kind: str) -> None:
    F, x, y = network(kind), images(4), labels(4)
    models = F.sample(7, 0)
    found = moments(models, x, y)
    s, g = map(torch.stack, zip(*(input_gradient(f, x, y) for f in models), strict=True))
    v = directions(g).v
    torch.testing.assert_close(found.rho(), vmf.mrl(v))
    torch.testing.assert_close(found.rho(1.0), vmf.mrl(v, 1.0))
    torch.testing.assert_close(found.mean_cosine(), mean_cosine(v))
    torch.testing.assert_close(found.norm_ratio(), vmf.norm_weighted_mrl(g, torch.nn.functional.logsigmoid(s)))
    assert found.n == 7
    assert found.usable.all()


def test_without_models_there_are_no_moments() -> None:
    with pytest.raises(GradDivError, match="there are 0 sample models"):
        moments([], images(2), labels(2))


def test_weights_that_underflow_leave_ratios_intact() -> None:
    def model(shift: float, scale: float) -> object:
        return lambda x: torch.stack([scale * x.flatten(1).sum(1) + shift, -x.flatten(1)[:, 0]], 1)

    x, y = images(2), torch.zeros(2, dtype=torch.int64)
    models = [model(4020.0, 3.0), model(4000.0, 1.0), model(4010.0, 2.0)]  # the greatest weight is met second
    found = moments(models, x, y)  # type: ignore[arg-type]
    s, g = map(torch.stack, zip(*(input_gradient(f, x, y) for f in models), strict=True))  # type: ignore[arg-type]
    sizes = (s - s.amax(0)).exp() * g.flatten(2).norm(dim=2)
    torch.testing.assert_close(found.log_scale, s.amax(0))
    torch.testing.assert_close(found.longest, sizes.amax(0))
    torch.testing.assert_close(found.length, sizes.mean(0))
    torch.testing.assert_close(found.norm_ratio(), vmf.norm_weighted_mrl(g, s))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_gradients() -> None:
    """One model and one gradient at a time: the next is made when the last is gone."""
    F = network("bayesian")
    alive: list[weakref.ref[object]] = []

    def models() -> object:
        for f in (F.bind(F.draw(seed)) for seed in range(5)):
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 1
            alive.append(weakref.ref(f))
            yield f

    moments(models(), images(2), labels(2))  # type: ignore[arg-type]
