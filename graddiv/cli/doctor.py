"""`graddiv doctor`: what this machine has, what is missing and the command that gets it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from graddiv import __version__
from graddiv.cli.data import DataRoot

REQUIRED = (
    "torch", "numpy", "scipy", "jaxtyping", "pydantic", "safetensors", "optuna", "matplotlib", "jinja2",
    "typer", "rich",
)  # fmt: skip
"""Those of pyproject.toml; not read from the metadata, which a checkout that is not installed lacks."""
PEERS = ("torchbnn", "bayesian-torch", "torchattacks", "pyautoattack", "foolbox", "eagerpy", "numba", "llvmlite")
"""Those of requirements/peers.txt."""


def doctor(
    data_root: DataRoot = None,
    peers: Annotated[bool, typer.Option("--peers", help="Also list the libraries that tests compare with.")] = False,
) -> None:
    """Show versions, device, threads, memory and data sets; say what is missing and how to get it."""
    import torch

    from graddiv.data import lookup, names, status

    _section("software")
    _row("graddiv", __version__)
    _row("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in REQUIRED:
        _row(package, _installed(package) or f"missing; get it with 'pip install {package}'")
    for package in PEERS if peers else ():
        _row(package, _installed(package) or f"missing, only tests use it; 'pip install --no-deps {package}'")

    _section("machine")
    accelerator = torch.accelerator.current_accelerator()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    _row("device", ", ".join(devices or [str(accelerator)]) if accelerator else "CPU only: torch sees no accelerator")
    _row("threads", f"{torch.get_num_threads()} used by torch of {_cores()} cores (set OMP_NUM_THREADS to change it)")
    _row("memory", _memory())

    _section("data sets")
    for name in names():
        _row(name, status(lookup(name), data_root))


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
