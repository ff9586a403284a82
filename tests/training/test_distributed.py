"""Two processes give the gradients of one, for every method."""

import datetime
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graddiv.distributed import Process
from graddiv.errors import GradDivError
from graddiv.networks.inputs import norm_layers
from graddiv.performance import channels_last
from graddiv.training import loop, objective_of, train
from tests.training.helpers import METHODS, assert_same_outcome, loader, random_data, tiny

pytestmark = pytest.mark.slow  # processes take seconds to start

STEPS = (0, 1)
CASES = [f"{data}/{method}" for data in ("mnist", "stl10") for method in METHODS]
CPU = torch.device("cpu")


def gradients(case: str, process: Process) -> dict[str, Tensor]:
    """The gradient at the second step of a batch of 4, batch norm's statistics frozen; the first step is not taken."""
    experiment, data = tiny(case), random_data(case.partition("/")[0], 10)
    F = channels_last(experiment.build(data)).train()
    for norm in norm_layers(F):
        norm.eval()
    wrapped: nn.Module = process.wrap(objective_of(F, experiment, len(data)))
    for step in STEPS:
        F.zero_grad()
        rows = process.local_rows(torch.arange(4) + 4 * step)
        x, y = data.batch(rows)
        wrapped(channels_last(x), y, step=step, ids=data.ids[rows]).backward()
    return {name: p.grad.clone() for name, p in F.named_parameters() if p.grad is not None}


def worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    found = {case: gradients(case, Process(rank, 2, CPU)) for case in CASES}
    import graddiv.data

    graddiv.data.load = loader(8)
    experiment = tiny("mnist/mi+graddiv", "training.epochs=2")
    train(experiment, Path(folder) / "whole")
    steps, loop._Training._step = loop._Training._step, interrupted(loop._Training._step)
    try:
        train(experiment, Path(folder) / "parts")
    except KeyboardInterrupt:
        loop._Training._step = steps
    dist.barrier()
    if rank == 1:  # a machine that does not see the directory
        train(experiment, Path(folder) / "nowhere")
    else:
        train(experiment, Path(folder) / "parts")
        torch.save(found, Path(folder) / "gradients.pt")
    try:
        train(tiny("mnist/mi", "training.batch=6"), Path(folder) / "odd")
    except GradDivError as error:
        (Path(folder) / f"error{rank}").write_text(str(error))
    dist.destroy_process_group()


def interrupted(step):  # type: ignore[no-untyped-def]
    def until(self, epoch, within):  # type: ignore[no-untyped-def]
        if self.progress.step == 3:
            raise KeyboardInterrupt
        return step(self, epoch, within)

    return until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(worker, (port, str(folder)), nprocs=2)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_gradients_of_one(case: str, folder: Path) -> None:
    found, expected = torch.load(folder / "gradients.pt")[case], gradients(case, Process(0, 1, CPU))
    assert found.keys() == expected.keys()
    size = max(float(g.abs().max()) for g in expected.values())
    assert size > 1e-4
    for name, g in found.items():
        assert torch.allclose(g, expected[name], rtol=0, atol=1e-6 * max(1.0, size)), name


def test_two_processes_resume_to_the_bit_and_one_alone_reads_and_writes(folder: Path) -> None:
    assert_same_outcome(folder / "parts", folder / "whole")
    assert not (folder / "nowhere").exists()


def test_pairs_are_not_torn_apart(folder: Path) -> None:
    for rank in range(2):
        message = (folder / f"error{rank}").read_text()
        assert message.startswith("training.batch is 6, of which each of 2 processes gets 3: this training")
