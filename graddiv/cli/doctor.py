"""`graddiv doctor`: what this machine has, what is missing and the command that gets it."""

import os
import platform
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from graddiv import __version__
from graddiv.cli.common import suggest
from graddiv.cli.data import DataRoot
from graddiv.cli.train import Device
from graddiv.errors import GradDivWarning
from graddiv.extras import EXTRAS

REQUIRED = ("torch", "numpy", "scipy", "jaxtyping", "safetensors")
"""Those of pyproject.toml; not read from the metadata, which a checkout that is not installed lacks."""
PEERS = ("torchbnn", "bayesian-torch", "torchattacks", "pyautoattack", "foolbox", "eagerpy", "numba", "llvmlite")
"""Those of requirements/peers.txt."""


def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run, or any directory with runs, records or reports: say whether its files are as they were "
            "written, and exit with 1 if one is not."
        ),
    ] = None,
    data_root: DataRoot = None,
    peers: Annotated[bool, typer.Option("--peers", help="Also list the libraries that tests compare with.")] = False,
    selfcheck: Annotated[
        bool,
        typer.Option(
            "--selfcheck",
            help="Also attack and measure two networks that come with the package, for about a minute, and say whether "
            "what is found lies in the expected ranges; exits with 1 if it does not.",
        ),
    ] = False,
    device: Device = None,
) -> None:
    """Show versions, device, threads, memory and data sets, and what is missing; or look for damage in a directory."""
    if run is not None:
        if not _is_intact(run):
            suggest("restore what is damaged from a copy, or delete it and run the command that made it again")
            raise typer.Exit(1)
        suggest(f"graddiv report {run}")
        return
    import torch

    from graddiv.data import lookup, names, status
    from graddiv.distributed import accelerator

    _section("software")
    _row("graddiv", __version__)
    _row("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in REQUIRED:
        _row(package, _installed(package) or f"missing; get it with 'pip install {package}'")
    for extra, packages in EXTRAS.items():
        for package in packages:
            _row(package, _installed(package) or f"missing; get it with 'pip install graddiv[{extra}]'")
    for package in PEERS if peers else ():
        _row(package, _installed(package) or f"missing, only tests use it; 'pip install --no-deps {package}'")

    _section("machine")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    _row("device", ", ".join(devices) or str(accelerator() or "CPU only: torch sees no accelerator"))
    _row("threads", f"{torch.get_num_threads()} used by torch of {_cores()} cores (set OMP_NUM_THREADS to change it)")
    _row("memory", _memory())

    _section("data sets")
    for name in names():
        _row(name, status(lookup(name), data_root))
    if selfcheck and not _selfcheck(device):
        suggest("graddiv doctor --selfcheck in a new environment, with the versions of constraints.txt")
        raise typer.Exit(1)
    suggest("graddiv reproduce demo --quick, or graddiv data fetch NAME for a data set that is missing")


def _is_intact(directory: Path) -> bool:
    """Print what is wrong with the files of a directory; whether nothing is."""
    from graddiv.cli.verify import verify

    with warnings.catch_warnings(action="ignore", category=GradDivWarning):  # what it would say is counted
        found = list(verify(directory))
    damaged = [finding for finding in found if finding.problem is not None]
    for finding in damaged:
        typer.echo(f"DAMAGED {finding.path}: {finding.problem}")
    certain = sum(finding.has_checksum for finding in found if finding.problem is None)
    typer.echo(
        f"{directory}: {len(found)} files read, {len(damaged)} damaged; {certain} are as they were written by their "
        f"checksum, {len(found) - len(damaged) - certain} have none"
    )
    return not damaged


def _selfcheck(device: str | None) -> bool:
    """Print each check as it is made; whether all of them passed."""
    from graddiv.distributed import join_processes
    from graddiv.paper.selfcheck import selfcheck

    _section("selfcheck")
    passed = True
    with join_processes(device) as process:
        for check in selfcheck(process.device):
            verdict = "ok" if check.passed else "NOT AS EXPECTED"
            typer.echo(f"  {check.name:<42}{check.value:8.3g}   expected {check.low:g} to {check.high:g}: {verdict}")
            passed &= check.passed
    return passed


def _section(title: str) -> None:
    typer.secho(title, bold=True)


def _row(name: str, value: str) -> None:
    typer.echo(f"  {name:<15}{value}")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> str:
    pages = {
        name: os.sysconf(f"SC_{name}") for name in ("PHYS_PAGES", "AVPHYS_PAGES") if f"SC_{name}" in os.sysconf_names
    }
    gigabytes = {name: count * os.sysconf("SC_PAGE_SIZE") / 2**30 for name, count in pages.items()}
    total, free = gigabytes.get("PHYS_PAGES"), gigabytes.get("AVPHYS_PAGES")
    return f"{total:.1f} GiB, {free:.1f} GiB of it free" if total and free else "unknown on this system"
