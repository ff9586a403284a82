"""A report and all that it is drawn from, small enough to be kept in a repository."""

from pathlib import Path

import numpy as np

from graddiv import store
from graddiv.records import Record
from graddiv.report.comparison import CHECKLIST
from graddiv.report.plan import Plan

KEPT = ("version.json", "experiment.json", "data.json", "recipe.toml", "metrics.jsonl")
"""Files of a run, besides records and the trained network."""


def archive(plan: Plan, directory: Path) -> Plan:
    """Copy the runs of a plan below a directory: logs, the records that the plan names, and the trained networks.

    Adversarial images are left out of records, and parameters are kept in half precision: both can be made again from
    the recipe, and no table or figure but the close-ups needs them.  Returns the plan of the copies.
    """
    runs = {}
    for key, run in plan.runs.items():
        source, target = Path(run.path), directory / "runs" / key
        store.make_directory(target / "records")
        for name in (name for name in KEPT if (source / name).exists()):
            store.write(target / name, (source / name).read_bytes())
        for name in sorted({name for item in plan.items for name in item.records.get(key, ())}):
            _copy_record(source / "records" / name, target / "records" / name)
        _copy_network(source, target)
        runs[key] = run.model_copy(update={"path": str(target)})
    return plan.model_copy(update={"runs": runs})


def _copy_record(source: Path, target: Path) -> None:
    if source.name == CHECKLIST:
        store.write(target, source.read_bytes())
        return
    record = Record.load(source)
    _, description = store.read_arrays(source)
    arrays = record.arrays
    if record.kind == "attack":
        arrays = {**arrays, "images": arrays["images"][:0]}
    store.write_arrays(target, arrays, description)


def _copy_network(source: Path, target: Path) -> None:
    """The parameters and buffers of the last checkpoint as float16, without the optimizer's."""
    last = Path("checkpoints") / "last.safetensors"
    arrays, description = store.read_arrays(source / last)
    network = {name: array for name, array in arrays.items() if name.startswith("network.")}
    half = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in network.items()}
    store.make_directory((target / last).parent)
    store.write_arrays(target / last, half, description)
