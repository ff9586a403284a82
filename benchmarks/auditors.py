"""Auditors judged on planted models, whose true robustness is known: who vouches for a number that is wrong?

An auditor is a function auditor(model, x, y, epsilon, norm) -> (low, accuracy, high, sufficient): the interval in which
it puts the accuracy of the ensemble of 20 draws on these images under the worst perturbation, and whether it vouches
for it.  The model is a module in eval mode; x are images with pixels in [0, 1]; norm is linf or l2.

    python -m benchmarks.auditors --auditor graddiv --auditor mine.py:auditor --family decoy

Built in are graddiv (its audit at budget quick), autoattack-standard, autoattack-rand and torchattacks-eotpgd.  The
last three give no verdict: whoever reads their number believes it.  Each answer is stored at once, so that the command
can be stopped and goes on where it was.
"""

import json
import runpy
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import parser
from benchmarks.planted import PLANTED, Planted, families
from benchmarks.planted.record import ENSEMBLE, draws
from benchmarks.tables import RESULTS
from graddiv import store
from graddiv.records import wilson
from graddiv.seeding import fold, isolated

Answer = tuple[float, float, float, bool]
"""(low, accuracy, high, sufficient)"""
Auditor = Callable[[nn.Module, Tensor, Tensor, float, str], Answer]
Row = dict[str, Any]

STORED = RESULTS / "auditors.json"
PAGE = Path(__file__).parent.parent / "docs" / "audit.md"
NO_ANSWER = "no answer"
CELLS = (
    "sufficient and right", "sufficient and wrong", "insufficient and right", "insufficient though right", NO_ANSWER,
)  # fmt: skip
"""What can happen.  An insufficient verdict is right where the number is wrong, and too strict where it is right."""


def graddiv(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> Answer:
    from graddiv import audit

    found = audit(model, x, y, epsilon=epsilon, norm=norm, budget="quick")
    robust = found.robust.ensemble
    return robust.low, robust.mean, robust.high, found.complete


def autoattack_standard(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> Answer:
    return _autoattack("standard", model, x, y, epsilon, norm)


def autoattack_rand(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> Answer:
    return _autoattack("rand", model, x, y, epsilon, norm)


def _autoattack(version: str, model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> Answer:
    from pyautoattack import AutoAttack

    attack = AutoAttack(model, norm=norm.capitalize(), eps=epsilon, version=version, seed=0)
    attack.verbose = False
    with isolated(0), torch.no_grad():
        others = model(x[:1]).shape[1] - 1
    for targeted in (attack.apgd_targeted, attack.fab):  # they are made for ten classes
        targeted.n_target_classes = min(targeted.n_target_classes, others)
    x_adv, _ = attack.run_standard_evaluation(x, y)
    return scored(model, x_adv, y)


def torchattacks_eotpgd(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> Answer:
    from torchattacks import EOTPGD

    if norm != "linf":
        raise ValueError(f"torchattacks has EOTPGD in linf only, not in {norm}")
    return scored(model, EOTPGD(model, eps=epsilon, alpha=epsilon / 4, steps=20, eot_iter=10)(x, y), y)


def scored(model: nn.Module, x_adv: Tensor, y: Tensor) -> Answer:
    """The accuracy of the ensemble on the images of an attack, and Wilson's interval: a number without a doubt."""
    right = draws(model, x_adv, ENSEMBLE, fold(0, "scored")).softmax(2).mean(0).argmax(1) == y
    accuracy = float(right.double().mean())
    low, high = wilson(float(right.sum()), len(y))
    return low, accuracy, high, True


AUDITORS: dict[str, Auditor] = {
    "graddiv": graddiv,
    "autoattack-standard": autoattack_standard,
    "autoattack-rand": autoattack_rand,
    "torchattacks-eotpgd": torchattacks_eotpgd,
}


def auditor_of(name: str) -> Auditor:
    """A built-in auditor, or the function that `file.py:function` names."""
    if name in AUDITORS:
        return AUDITORS[name]
    path, _, function = name.rpartition(":")
    if not path:
        raise SystemExit(f"the auditor is {name!r}, expected one of {', '.join(AUDITORS)}, or file.py:function")
    found: Auditor = runpy.run_path(path)[function]
    return found


def judged(name: str, auditor: Auditor, planted: Planted) -> Row:
    """What an auditor says of a model, beside the truth; an error is no answer."""
    (x, y), truth = planted.images(), planted.truth
    about = {"auditor": name, "model": planted.name, "family": planted.family}
    known = {"partial": planted.partial, "sound": planted.sound, "truth": truth.accuracy, "lower": truth.lower}
    before = time.process_time()
    try:
        with isolated(fold(0, "auditor", planted.name)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            low, accuracy, high, sufficient = auditor(
                planted.make(), x.clone(), y.clone(), planted.epsilon, planted.norm
            )
        said: Row = {"low": low, "accuracy": accuracy, "high": high, "sufficient": bool(sufficient)}
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"[:200]}
    return {**about, **known, **said, "seconds": round(time.process_time() - before, 1)}


def cell(row: Row) -> str:
    """Which of CELLS the row is: an interval is wrong above the best attack known, or below what is proved."""
    if "error" in row:
        return NO_ANSWER
    right = row["low"] <= row["truth"] and row["lower"] <= row["high"]
    if row["sufficient"]:
        return "sufficient and right" if right else "sufficient and wrong"
    return "insufficient though right" if right else "insufficient and right"


def tabulated(rows: Sequence[Row]) -> str:
    """Two tables in Markdown: how often each auditor is right, and by whom each family is misjudged."""
    return "\n\n".join([_confusion(rows), _fooled(rows)])


def _confusion(rows: Sequence[Row]) -> str:
    lines = [f"| auditor | models | {' | '.join(CELLS)} | seconds a model |", "|---|" + "---|" * (len(CELLS) + 2)]
    for auditor, own in _by("auditor", rows).items():
        counts = Counter(map(cell, own))
        seconds = sum(row["seconds"] for row in own) / len(own)
        lines.append(f"| {auditor} | {len(own)} | {' | '.join(str(counts[c]) for c in CELLS)} | {seconds:.0f} |")
    return "\n".join(lines)


def _fooled(rows: Sequence[Row]) -> str:
    """Models of each family that an auditor vouches for with a wrong number, of those that it was shown."""
    auditors = _by("auditor", rows)
    lines = [f"| sufficient and wrong | {' | '.join(auditors)} |", "|---|" + "---|" * len(auditors)]
    for family in _by("family", rows):
        cells = []
        for own in auditors.values():
            shown = [row for row in own if row["family"] == family]
            wrong = sum(cell(row) == "sufficient and wrong" for row in shown)
            cells.append(f"{wrong} of {len(shown)}" if shown else "")
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by(key: str, rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def written(page: str, rows: Sequence[Row]) -> str:
    """The page with its tables, between `<!-- auditors -->` and `<!-- end -->`, made anew."""
    before, mark, rest = page.partition("<!-- auditors -->\n")
    if not mark:
        return page
    return f"{before}{mark}\n{tabulated(rows)}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"


def run(auditors: Sequence[str], names: Sequence[str], path: Path, again: bool = False) -> list[Row]:
    """Judge each auditor on these models; rows of the file that are there already are not made again."""
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    done = {(row["auditor"], row["model"]) for row in rows}
    if again:
        rows = [row for row in rows if row["auditor"] not in auditors or row["model"] not in names]
        done = {(row["auditor"], row["model"]) for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        for auditor in auditors:
            if (auditor, name) in done:
                continue
            rows.append(row := judged(auditor, auditor_of(auditor), PLANTED[name]))
            store.write(path, (json.dumps(rows, indent=1) + "\n").encode())
            print(line(row), flush=True)
    return [row for row in rows if row["auditor"] in auditors and row["model"] in names]


def line(row: Row) -> str:
    said = row.get("error") or f"{row['accuracy']:6.1%} ({row['low']:.1%} to {row['high']:.1%})"
    return f"{row['auditor']:<20} {row['model']:<28} true {row['truth']:6.1%}  said {said}  {cell(row)}"


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--auditor", action="append", help="a built-in one, or file.py:function; may be repeated")
    options.add_argument(
        "--family", action="append", choices=families(), help="the models of a family; may be repeated"
    )
    options.add_argument("--only", action="append", choices=PLANTED, help="a model; may be repeated", metavar="MODEL")
    options.add_argument("--again", action="store_true", help="forget what these auditors said of these models before")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    wanted = set(chosen.only or ()) | {name for family in chosen.family or () for name in families()[family]}
    names = [name for name in PLANTED if (name in wanted if wanted else not chosen.quick or name.startswith("toy-"))]
    path = chosen.json or Path("runs") / "auditors.json"
    print(tabulated(run(chosen.auditor or ["graddiv"], names, path, chosen.again)))
    if path.resolve() == STORED.resolve():
        PAGE.write_text(written(PAGE.read_text(), json.loads(path.read_text())))


if __name__ == "__main__":
    main()
