"""A report and all that it is drawn from, small enough to be kept in a repository."""

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from graddiv import store
from graddiv.records import Record
from graddiv.report.plan import Plan
from graddiv.runs import CHECKLIST, Run


def archive(plan: Plan, directory: Path, *, networks: bool | Collection[str] = True) -> Plan:
    """Copy the runs of a plan below a directory: logs, the records that the plan names, and the trained networks.

    networks: False leaves them out, where many of them would be too much for a repository; or the runs whose are kept.

    Adversarial images are left out of records, and parameters are kept in half precision: both can be made again from
    the recipe, and no table or figure but the close-ups needs them.  Returns the plan of the copies.
    """
    runs = {}
    for key, run in plan.runs.items():
        target = Run(directory / "runs" / key)
        names = {name for item in plan.items for name in item.records.get(key, ())}
        network = networks if isinstance(networks, bool) else key in networks
        copy_run(Run(Path(run.path)), target, sorted(names), network=network)
        runs[key] = run.model_copy(update={"path": str(target.path)})
    return plan.model_copy(update={"runs": runs})


def copy_run(source: Run, target: Run, records: Iterable[str] = (), *, network: bool = True) -> None:
    """Copy a finished run without its optimizer, in half precision, with these of its records and without images."""
    store.make_directory(target.records)
    for name in records:
        _copy_record(source.records / name, target.records / name)
    if network and source.last_checkpoint.exists():
        _copy_network(source, target)
    # last of all, the log at the end: it says that the run is finished, so a copy that was killed must not have it
    for path in (p for p in source.description_files if p.exists()):
        store.write(target.path / path.name, store.read(path))


def _copy_record(source: Path, target: Path) -> None:
    if source.name == CHECKLIST:
        store.write(target, store.read(source))
        return
    record = Record.load(source)
    _, description = store.read_arrays(source)
    arrays = record.arrays
    if record.kind == "attack":
        arrays = {**arrays, "images": arrays["images"][:0]}
    store.write_arrays(target, arrays, description)


def _copy_network(source: Run, target: Run) -> None:
    """The parameters and buffers of the trained network as float16, without the optimizer's."""
    store.make_directory(target.checkpoints)
    for path in {source.last_checkpoint, source.trained_checkpoint}:
        arrays, description = store.read_arrays(path)
        network = {name: array for name, array in arrays.items() if name.startswith("network.")}
        half = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in network.items()}
        store.write_arrays(target.checkpoints / path.name, half, description)
