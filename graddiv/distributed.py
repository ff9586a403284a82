"""One process or many: `torchrun --nproc-per-node N -m graddiv -- train ...` shares every batch among N of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from graddiv.errors import GradDivError

Value = TypeVar("Value")
LOST = ("Connection closed by peer", "Connection reset by peer", "gloo/transport")  #: Signs of a lost process.


@dataclass(frozen=True)
class Process:
    """One process among those that work together."""

    rank: int  #: Its number, from 0.
    size: int  #: How many processes there are.
    device: torch.device  #: The device on which it computes.

    @property
    def writes(self) -> bool:
        """Whether this is the one process that writes files and shows progress."""
        return self.rank == 0

    def local_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of a batch that this process works on: a contiguous part, as long as that of the others."""
        return rows.chunk(self.size)[self.rank] if self.size > 1 else rows

    def wrap(self, objective: nn.Module) -> nn.Module:
        """Return the objective, wrapped so that gradients are averaged over all processes.

        The whole loss is inside the wrapped forward, and unused parameters are searched for: with a gradient
        regularizer every other arrangement is silently wrong in some case.
        """
        if self.size == 1:
            return objective
        # Mixup's pool of images is large, and every process has loaded it: DDP need not broadcast it.
        pool = [name for name, _ in objective.named_buffers() if name.endswith("pool")]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective, pool)  # type: ignore[no-untyped-call]
        for parameter in objective.parameters():
            parameter.register_hook(partial(_stored_as, parameter))  # type: ignore[no-untyped-call]
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids=devices, find_unused_parameters=True)

    def mean(self, values: dict[str, Tensor]) -> dict[str, float]:
        """Return the values averaged over all processes."""
        if not values:
            return {}
        stacked = torch.stack([value.detach().double().to(self.device) for value in values.values()])
        if self.size > 1:
            distributed.all_reduce(stacked)
            stacked /= self.size
        return dict(zip(values, stacked.tolist(), strict=True))

    def broadcast(self, value: Value) -> Value:
        """Return, in every process, the value that the writing process passes."""
        box = [value]
        if self.size > 1:
            distributed.broadcast_object_list(box)
        return box[0]

    def wait(self) -> None:
        if self.size > 1:
            distributed.barrier()


ALONE = Process(0, 1, torch.device("cpu"))  #: The only process, on the CPU.


@contextmanager
def join_processes(device: str | None = None) -> Iterator[Process]:
    """Join the processes that torchrun started, or be the only one; by default on the GPU if there is one."""
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    where = chosen_device(device, local)
    if size == 1:
        yield Process(0, 1, where)
        return
    if where.type == "cuda":
        torch.cuda.set_device(where)
    joined = distributed.is_initialized()
    if not joined:
        distributed.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=timedelta(minutes=10))
    try:
        yield Process(distributed.get_rank(), size, where)
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and not any(sign in str(error) for sign in LOST):
            raise
        raise GradDivError(
            f"process {os.environ.get('RANK', '?')} of {size} stops, since another one was lost: "
            "the same command goes on where they stopped, also with another number of processes"
        ) from error
    finally:
        if not joined and distributed.is_initialized():
            distributed.destroy_process_group()


def _stored_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient in the parameter's strides, as DDP expects; those of dimensions of length 1 may differ."""
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


def accelerator() -> torch.device | None:
    """Return the kind of accelerator that torch can use here; torch 2.6 raises where there is none, so ask first."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def chosen_device(name: torch.device | str | None, local_rank: int = 0) -> torch.device:
    """Return a device that works; "cuda" without a number is the GPU of this process."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise GradDivError(f"device {str(name)!r} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device("cuda", local_rank) if device.type == "cuda" and device.index is None else device
