"""The readers of the package, and a good file for each of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from graddiv import store
from graddiv.recipes import recipe
from graddiv.records import Record, as_rows, table
from graddiv.report.comparison import load_run
from graddiv.report.plan import Plan, PlannedItem, PlannedRun
from graddiv.runs import CHECKLIST, Log, Run, TrainingPosition, load_state, network_part
from graddiv.training.start import moments_of, restore_moments
from tests.fake_records import arrays, attack_record, description
from tests.training.helpers import tiny

EXPERIMENT = tiny("mnist/adv-bnn+graddiv", "network.width=0.02")
WHOLE, PREFIX, ANYTHING = "the same", "a beginning of it", "anything"
"""What a reader may return of a damaged file, if it does not refuse it."""


class Subject(NamedTuple):
    """A reader, and a good file for it."""

    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    accepts: str


def _checkpoint(path: Path) -> None:
    F = EXPERIMENT.build()
    adam = torch.optim.Adam(F.parameters())
    for p in F.parameters():
        p.grad = torch.ones_like(p)
    adam.step()
    state = {f"network.{name}": t for name, t in F.state_dict().items()} | moments_of(adam, F)
    progress = vars(TrainingPosition(3, {"loss": 1.5}, 0))
    store.write_tensors(path, state, {"progress": progress})


def _resume(path: Path) -> Any:
    found, about = store.read_tensors(path)
    F = EXPERIMENT.build()
    adam = torch.optim.Adam(F.parameters())
    position = TrainingPosition.of(about, path)
    load_state(F, network_part(found), path)
    restore_moments(adam, F, found, path)
    return position, {name: t.tolist() for name, t in found.items()}


def _without_checksum(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """A file as others write them."""

    def old(path: Path) -> None:
        write(path)
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        del header["__metadata__"][store.CHECKSUM]
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return old


def _record(path: Path) -> None:
    store.write_arrays(path, arrays(20), description("EOT-PGD", 20))


def _table(path: Path) -> Any:
    record = Record.load(path)
    shown = table([record, attack_record("EOT-PGD", repeat=1, b=20)]) if record.kind == "attack" else ()
    return str(as_rows([record])), str(shown), {name: array.tolist() for name, array in record.arrays.items()}


def _log(path: Path) -> None:
    log = Log(path)
    log(event="start", versions={"graddiv": "0"}, processes=1)
    for epoch in range(5):
        log(event="epoch", epoch=epoch, loss=1.5 / (epoch + 1), rho=0.25)
    log.close()


def _read_log(path: Path) -> Any:
    class Elsewhere(Run):
        log_file = path  # type: ignore[assignment]

    run = Elsewhere(path.parent)
    return run.log, run.epochs_done


def _run(path: Path) -> None:
    path.write_text(json.dumps(EXPERIMENT.dump()))


def _settings(path: Path) -> Any:
    target = path.with_name("run")
    target.mkdir(exist_ok=True)
    for name in ("experiment.json", "version.json"):
        (target / name).write_bytes(path.read_bytes() if name == "experiment.json" else b'{"format": 1}')
    return Run(target).experiment.cost, Run(target).experiment.run_name


def _version(path: Path) -> Any:
    target = path.with_name("versioned")
    target.mkdir(exist_ok=True)
    (target / "version.json").write_bytes(path.read_bytes())
    Run(target).check_format()


def _recipe(path: Path) -> Any:
    experiment = recipe(str(path))
    return experiment.cost, experiment.run_name, experiment.to_toml()


def _plan(path: Path) -> None:
    item = PlannedItem(name="a", renderer="accuracy-table", records={"r": ("x.record",)})
    Plan(title="t", scale="quick", runs={"r": PlannedRun(path="r", title="R")}, items=(item,)).save(path.parent)
    path.with_name("plan.json").rename(path)


def _read_plan(path: Path) -> Any:
    path.with_name("plan.json").write_bytes(path.read_bytes())
    return Plan.load(path.parent)


def _checklist(path: Path) -> None:
    item = {"name": "a", "verdict": "pass", "sentence": "so it is", "evidence": {"a": [1.5, None]}}
    store.write_json(path, {"target": "t", "epsilon": 0.1, "settings": {}, "items": [item, item]})


def _read_checklist(path: Path) -> Any:
    run = Run(path.with_name("checked"))
    store.make_directory(run.records)
    run.checklist_file.write_bytes(path.read_bytes())
    return load_run(run.path, "R", [CHECKLIST]).checklist


SUBJECTS: dict[str, Subject] = {
    "checkpoint": Subject(_checkpoint, _resume, WHOLE),
    "record": Subject(_record, _table, WHOLE),
    "network of others": Subject(_without_checksum(_checkpoint), store.read_state, ANYTHING),
    "log": Subject(_log, _read_log, PREFIX),
    "experiment.json": Subject(_run, _settings, ANYTHING),
    "version.json": Subject(lambda path: store.write_json(path, {"format": 1}), _version, ANYTHING),
    "recipe.toml": Subject(lambda path: store.write(path, EXPERIMENT.to_toml().encode()), _recipe, ANYTHING),
    "plan.json": Subject(_plan, _read_plan, ANYTHING),
    "checklist.json": Subject(_checklist, _read_checklist, ANYTHING),
}
