"""The checks of gradients, apart from the networks of tests/audit that fail them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from graddiv.evaluation.checks import CHECKS, _mean
from graddiv.evaluation.inspection import Answer, Check, Inspection, check
from graddiv.networks import Dirac
from graddiv.registries import Registry


def test_a_mean_over_nothing_lies_where_the_values_lie() -> None:
    values = torch.full((2,), torch.nan, dtype=torch.float64)
    with torch.device("meta"):  # the default device, as one without a GPU can make it differ from that of the values
        found = _mean(values)
    assert (found.device, found.dtype) == (values.device, values.dtype)
    assert found == 1


def test_a_check_is_one_decorated_function() -> None:
    known: Registry[Check] = Registry("check", {})

    @check("pixels are dark", of=known, decisive=("fail",))
    def dark(seen: Inspection) -> Answer:
        mean = float(seen.x.mean())
        return "pass" if mean < 0.5 else "fail", f"the mean of all pixels is {mean:.2f}", {"mean": mean}

    item = known["dark"](Inspection(Dirac(torch.nn.Flatten()), torch.ones(2, 1, 2, 2), torch.zeros(2).long()))
    assert (item.name, item.verdict, item.evidence) == ("pixels are dark", "fail", {"mean": 1.0})
    assert known["dark"].decisive == ("fail",)


class Purifying(torch.nn.Module):
    """Moves the image along a gradient before it answers; `how` takes that gradient."""

    def __init__(self, how: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.how, self.last = how, torch.nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        point = x.detach().requires_grad_()
        self.how(self.last(point).logsumexp(1).sum(), point)
        return self.last(x)


@pytest.mark.parametrize(
    ("how", "taken"),
    [
        (lambda loss, point: torch.autograd.grad(loss, point), 1),
        (lambda loss, point: loss.backward(), 1),
        (lambda loss, point: torch.autograd.backward(loss), 1),
        (lambda loss, point: None, 0),
    ],
)
def test_gradients_that_a_network_takes_are_counted(how: Callable[[Tensor, Tensor], object], taken: int) -> None:
    seen = Inspection(Dirac(Purifying(how)), torch.rand(3, 4), torch.zeros(3, dtype=torch.int64))
    item = CHECKS["optimization"](seen)
    assert (item.evidence["taken"], item.verdict) == (taken, "warn" if taken else "pass")


def test_counting_ends_with_an_error() -> None:
    def fails(loss: Tensor, point: Tensor) -> None:
        raise RuntimeError("stopped")

    before = torch.autograd.grad, torch.autograd.backward
    with pytest.raises(RuntimeError, match="stopped"):
        CHECKS["optimization"](Inspection(Dirac(Purifying(fails)), torch.rand(3, 4), torch.zeros(3, dtype=torch.int64)))
    assert (torch.autograd.grad, torch.autograd.backward) == before
    assert not torch.overrides._get_current_function_mode_stack()
