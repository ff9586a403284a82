"""The checks of gradients, apart from the networks of tests/audit that fail them."""

import torch

from graddiv.evaluation.checks import _mean
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
