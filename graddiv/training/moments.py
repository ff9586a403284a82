"""The moments of Adam in a checkpoint: without them a training that goes on would end elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.runs import check_tensor

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def moments_of(optimizer: torch.optim.Adam, module: nn.Module) -> dict[str, Tensor]:
    """The moments of every parameter that has been moved, by name."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in module.named_parameters()}
    return {f"adam.{moment}.{name}": value for name, state in states.items() for moment, value in state.items()}


def restore_moments(
    optimizer: torch.optim.Adam,
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    path: Path,
) -> None:
    """Give the optimizer the moments that the checkpoint at `path` holds, once they are complete.

    The description lists them; in checkpoints of earlier versions, which do not, every parameter must have its own.
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    listed = description.get("moments", [f"adam.{moment}.{name}" for name in parameters for moment in MOMENTS])
    expected = set(map(str, listed)) if isinstance(listed, list) else set()
    found = {name for name in tensors if name.startswith("adam.")}
    if odd := sorted(found ^ expected):
        raise GradDivError(f"{path} is damaged: the moments of Adam are not complete, see {', '.join(odd[:3])}")
    for name, parameter in parameters.items():
        wanted = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
        moments = {moment: tensors[key] for moment in MOMENTS if (key := f"adam.{moment}.{name}") in found}
        for moment, value in moments.items():
            check_tensor(f"adam.{moment}.{name}", value, wanted[moment], path)
            if moment != "step":
                moments[moment] = torch.empty_like(parameter).copy_(value)
        if moments:
            optimizer.state[parameter] = moments
