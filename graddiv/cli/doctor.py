"""`graddiv doctor` and `graddiv data`: what this machine has, what is missing or damaged, and how to get it."""

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from graddiv import __version__
from graddiv.cli.options import Machine, command, suggest
from graddiv.errors import EXTRAS, GradDivError, unknown
from graddiv.progress import Bar

if TYPE_CHECKING:
    from graddiv.data import Source

REQUIRED = ("torch", "numpy", "scipy", "jaxtyping", "safetensors")
"""The packages of pyproject.toml; a checkout that is not installed has no metadata to read them from."""
PEERS = ("torchbnn", "bayesian-torch", "torchattacks", "pyautoattack", "foolbox", "eagerpy", "numba", "llvmlite")
"""The packages of requirements/peers.txt."""


@command
def doctor(run: Path | None = None, /, *, list_peers: bool = False, selfcheck: bool = False, machine: Machine) -> None:
    """Show what this machine has and what is missing; or look for damaged files in a directory.

    graddiv doctor

    graddiv doctor runs/NAME
    """
    if run is not None:
        if not _is_intact(run):
            suggest("restore what is damaged from a copy, or delete it and run the command that made it again")
            raise typer.Exit(1)
        suggest(f"graddiv report {run}")
        return
    _print_machine(list_peers)
    from graddiv.data import SOURCES, status

    _section("data sets", {name: status(source, machine.data_root) for name, source in SOURCES.items()})
    if selfcheck and not _selfcheck(machine.device):
        suggest("graddiv doctor --selfcheck in a new environment, with the versions of constraints.txt")
        raise typer.Exit(1)
    suggest("graddiv reproduce demo --quick, or graddiv data fetch NAME for a data set that is missing")


def _section(title: str, rows: dict[str, str]) -> None:
    typer.secho(title, bold=True)
    for name, value in rows.items():
        typer.echo(f"  {name:<15}{value}")


def _print_machine(peers: bool) -> None:
    """Print versions, devices, threads and memory."""
    import torch

    from graddiv.distributed import accelerator

    packages = {package: f"missing; get it with 'pip install {package}'" for package in REQUIRED}
    packages |= {p: f"missing; get it with 'pip install graddiv[{extra}]'" for extra, ps in EXTRAS.items() for p in ps}
    if peers:
        packages |= {p: f"missing, only tests use it; 'pip install --no-deps {p}'" for p in PEERS}
    python = f"{platform.python_version()} on {platform.platform(terse=True)}"
    for package in packages:
        with suppress(PackageNotFoundError):
            packages[package] = version(package)
    _section("software", {"graddiv": __version__, "python": python, **packages})
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = f"{torch.get_num_threads()} used by torch of {cores} cores (set OMP_NUM_THREADS to change it)"
    device = ", ".join(devices) or str(accelerator() or "CPU only: torch sees no accelerator")
    memory, pages = "unknown on this system", ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
    if os.sysconf_names.keys() >= {*pages}:
        total, free = (os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") / 2**30 for name in pages)
        memory = f"{total:.1f} GiB, {free:.1f} GiB of it free"
    _section("machine", {"device": device, "threads": threads, "memory": memory})


def _selfcheck(device: str | None) -> bool:
    """Make and print each check; return whether all of them passed."""
    from graddiv.distributed import chosen_device
    from graddiv.paper.shipped import selfcheck

    _section("selfcheck", {})
    passed = True
    for check in selfcheck(chosen_device(device)):
        within = check.low <= check.value <= check.high
        verdict = "ok" if within else "NOT AS EXPECTED"
        typer.echo(f"  {check.name:<42}{check.value:8.3g}   expected {check.low:g} to {check.high:g}: {verdict}")
        passed &= within
    return passed


def _is_intact(directory: Path) -> bool:
    """Read every file of graddiv's below a directory and print which are damaged; return whether none is."""
    if not directory.is_dir():
        raise GradDivError(f"there is no directory {directory}: expected that of a run, of records or of a report")
    whole = damaged = certain = 0
    for path in sorted(directory.rglob("*")):
        if (read := _reader(path)) is None:
            continue
        try:
            read(path)
            whole += 1
            certain += path.suffix in (".safetensors", ".record", ".jsonl") or path.parent.suffix == ".parts"
        except GradDivError as error:
            damaged += 1
            typer.echo(f"DAMAGED {path}: {error}")
    typer.echo(
        f"{directory}: {whole + damaged} files read, {damaged} damaged; {certain} are as they were written by their "
        f"checksum, {whole - certain} have none"
    )
    return not damaged


def _reader(path: Path) -> Callable[[Path], Any] | None:
    """Return the function that reads a file of this name; None for foreign files and those being written."""
    from graddiv import store
    from graddiv.records import Record
    from graddiv.report.plan import PLAN, Plan
    from graddiv.runs import CHECKLIST, Run

    run = Run(path.parent)
    if path.name.startswith("."):
        return None
    if path.parent.suffix == ".parts":
        return store.read_arrays
    by_name: dict[str, Callable[[Path], Any]] = {
        run.version_file.name: lambda path: run.check_format(),
        run.experiment_file.name: lambda path: run.experiment,
        run.data_file.name: store.read_json,
        run.recipe_file.name: store.read_toml,
        run.log_file.name: lambda path: run.log,
        PLAN: lambda path: Plan.load(path.parent),
        CHECKLIST: store.read_json,
    }
    by_suffix = {".safetensors": _read_checkpoint, ".record": Record.load}
    return by_suffix.get(path.suffix) or by_name.get(path.name)


def _read_checkpoint(path: Path) -> None:
    """Read a checkpoint; the last one must fit the network and the log of the run."""
    from graddiv import store
    from graddiv.runs import Run, TrainingPosition

    _, description = store.read_tensors(path)
    TrainingPosition.of(description, path)
    run = Run(path.parent.parent)
    needs_data = run.finished and run.experiment.rules.interpolated
    if run.finished and path == run.trained_checkpoint and not needs_data:
        run.network()


@command
def data(action: str = "list", name: str = "", /, *, machine: Machine) -> None:
    """List, verify or download the data sets.

    graddiv data list

    graddiv data fetch cifar10
    """
    from graddiv.data import SOURCES

    actions = {"list": _list, "verify": _verify, "fetch": _fetch}
    if action not in actions:
        raise unknown("action", action, actions)
    if action == "fetch" and not name:
        raise GradDivError(f"no data set is named, expected 'graddiv data fetch NAME' with one of {', '.join(SOURCES)}")
    actions[action]([SOURCES[name]] if name else list(SOURCES.values()), machine.data_root)


def _list(sources: "list[Source]", root: Path | None) -> None:
    from graddiv.data import status

    for source in sources:
        shape = "x".join(map(str, source.shape))
        train, test = source.training_examples, source.sizes["test"]
        sizes = f"{train:>6} train {source.held_out:>5} validation {test:>6} test"
        print(f"{source.name:<11} {shape:<8} {sizes}  {status(source, root)}")
    suggest("graddiv train NAME/adv-bnn; graddiv recipes lists all")


def _verify(sources: "list[Source]", root: Path | None) -> None:
    from graddiv.data.files import fetch_command, inspect

    failed = False
    for source in sources:
        findings = list(inspect(source, root))
        if not findings:
            print(f"{source.name}: generated, no file to verify")
        elif len(sources) > 1 and all(md5 is None for _, md5 in findings):
            print(f"{source.name}: not here; get it with '{fetch_command(source, root)}'")
        else:
            for copy, md5 in findings:
                wrong = "missing" if md5 is None else f"wrong, md5 {md5}, expected {copy.md5}"
                print(f"{source.name}: {copy.path}: {'ok' if md5 == copy.md5 else wrong}")
            failed |= any(md5 != copy.md5 for copy, md5 in findings)
    suggest("graddiv data fetch NAME for what is wrong or missing" if failed else "graddiv recipes")
    if failed:
        raise typer.Exit(1)


def _fetch(sources: "list[Source]", root: Path | None) -> None:
    from graddiv.data import status
    from graddiv.data.fetch import fetch
    from graddiv.data.files import fetch_root, inspect

    (source,) = sources
    if all(md5 == copy.md5 for copy, md5 in inspect(source, root)) or not source.downloads:
        print(f"{source.name}: {status(source, root)}, nothing to fetch")
    else:
        folder = fetch_root(source, root)
        with Bar() as bar:
            fetch(source, folder, bar)
        print(f"{source.name}: fetched and verified in {folder}")
    suggest(f"graddiv train {source.name}/adv-bnn")
