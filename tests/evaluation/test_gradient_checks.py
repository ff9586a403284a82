"""The checks of gradients, apart from the networks of tests/audit that fail them."""

import torch

from graddiv.evaluation.gradient_checks import _mean


def test_a_mean_over_nothing_lies_where_the_values_lie() -> None:
    values = torch.full((2,), torch.nan, dtype=torch.float64)
    with torch.device("meta"):  # the default device, as one without a GPU can make it differ from that of the values
        found = _mean(values)
    assert (found.device, found.dtype) == (values.device, values.dtype)
    assert found == 1
