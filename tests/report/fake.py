"""Run directories as training, attacks and measurements leave them, with numbers from a generator: always the same.

Descriptions and file names are those of the real jobs, and every record passes its class's checks; only what the jobs
would compute is made up.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from graddiv import store
from graddiv.attacks import FGSM, PGD, Attack, Square, StochasticPGD
from graddiv.evaluation import Cell, Target, cells
from graddiv.evaluation.behaviours import settings_of
from graddiv.evaluation.budget import BUDGETS
from graddiv.evaluation.inspection import Item
from graddiv.evaluation.jobs import (
    SHARES,
    STEPS,
    attacked_ensemble_job,
    boundary_job,
    certificate_job,
    concentration_job,
    ensemble_size_job,
    gradient_noise_job,
    gradients_job,
    loss_increase_job,
    nearby_job,
    path_job,
    rotation_job,
    transfer_job,
)
from graddiv.evaluation.mechanism import DISTANCES, contrast_job, filters_job
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.run import Job
from graddiv.evaluation.target import KEPT_IMAGES, Examples
from graddiv.experiment import Experiment
from graddiv.geometry import L2
from graddiv.networks import Dirac, bayesian
from graddiv.recipes import recipe, title
from graddiv.report.closeups import Grid
from graddiv.report.comparison import CHECKLIST, Comparison, ReportRun, load_run
from graddiv.report.page import Choices, plan_for
from graddiv.report.plan import ATTACK_TABLE, Plan
from graddiv.report.tables import attack_table
from graddiv.runs import Log
from graddiv.seeding import isolated

SIDE, CLASSES, EXAMPLES, MODELS, ENSEMBLE = 8, 10, 40, 4, 20
P = SIDE * SIDE
EPSILONS = (0.1, 0.2, 0.3)
ANGLES = [float(angle) for angle in range(0, 91, 10)]
ATTACKS: tuple[Attack, ...] = (FGSM(), PGD(m=20), Square(m=20))
STRENGTH = {"FGSM": 0.7, "Square": 0.3}


def comparison(
    directory: Path, methods: tuple[str, ...] = ("adv-bnn", "adv-bnn+graddiv"), lams: tuple[float, ...] = (0.3,)
) -> Comparison:
    """These methods, those with GradDiv once for each weight, with all records, beside the paper's values."""
    runs = []
    for method in methods:
        for lam in lams if "+graddiv" in method else (0.0,):
            runs.append(run(directory / f"{method}-{lam:g}", method, lam))
    return compared(*runs)


def compared(*runs: ReportRun, scale: str = "demo") -> Comparison:
    """These runs beside the paper's values."""
    return Comparison(runs, scale)


def at(
    of: Comparison,
    epsilon: float | None = None,
    n: int | None = None,
    m: int | None = 20,
    modes: str = "fixed eot1 eot",
) -> Comparison:
    """The attacks that a plan would name: at one radius, with one number of models of EOT and of iterations."""

    def wanted(of_run: ReportRun, record: Any) -> bool:
        return (
            epsilon in (None, record.epsilon)
            and (n is None or record.mode != "eot" or record.n == n)
            and (record.m in (1, m) or m is None)
            and (record.mode in modes.split() or not of_run.random)
        )

    return of.only(wanted)


def grid(of: Comparison, **chosen: Any) -> Grid:
    """The grid of the table that `at` chooses."""
    one = at(of, **chosen)
    return Grid(one, attack_table(one))


def swept(of: Comparison, over: str) -> Comparison:
    """The attacks of a curve over epsilon, n, m or passes: all their other settings are the same."""
    match over:
        case "epsilon":
            return at(of, n=10, modes="eot")
        case "n":
            return at(of, epsilon=0.2, modes="eot1 eot")
        case "passes":
            return at(of, epsilon=0.2, n=4, m=None, modes="eot")
        case _:
            return at(of, epsilon=0.2, n=10, m=None, modes="eot")


def plan(paths: list[Path], *figures: str) -> Plan:
    """A report on fake runs with these figures: EOT of n = 10 models, at the radius of training of others too."""
    made = plan_for(paths, Choices(epsilon=0.2, n=10, m=20))
    kept = [item for item in made.items if item.renderer in (ATTACK_TABLE, "checklist", *figures)]
    kept += [
        item.model_copy(update={"name": f"{item.name}-n{n}"})
        for n in (5, 20)
        for item in plan_for(paths, Choices(epsilon=0.2, n=n, m=20)).items
        if item.name == "attacks-eps0.2"
    ]
    return made.model_copy(update={"items": tuple(kept), "papers": True})  # as `reproduce` makes it


def experiment(method: str, lam: float = 0.0, data: str = "mnist-mini") -> Experiment:
    """The shipped recipe at scale demo."""
    return recipe(f"{data}/{method}", "demo", [f"graddiv.lam={lam}"] if "+graddiv" in method else [])


def run(path: Path, method: str, lam: float = 0.0, data: str = "mnist-mini", **attacks: Any) -> ReportRun:
    """A run with all kinds of records; keyword arguments go to `attack_cells`."""
    settings = experiment(method, lam, data)
    rng = np.random.default_rng([*path.name.encode()])
    rho = 0.7 / (1 + 4 * lam)
    with patch("os.fsync"):  # no power cut is feared here, and waiting for the disk takes longer than all else
        store.make_directory(path / "records")
        store.write_json(path / "experiment.json", settings.dump())
        write_log(path, log(rng, rho, settings))
        of = target(path.name, settings)
        for cell in attack_cells(settings.random, **attacks):
            write_attack(path, of, cell, rng, rho)
        if settings.random:
            write_measurements(path, of, rng, rho)
            write_checklist(path, lam)
    return everything(path)


def retrained(of: ReportRun, epsilon: float | None = None, seed: int = 0, epochs: int | None = None) -> ReportRun:
    """The same records of a run that was trained at another radius, with another seed, or for other epochs at first."""
    path = of.path.with_name(f"{of.path.name}-{epsilon}-{seed}-{epochs}")
    settings = of.experiment.dump() | {"seed": seed}
    settings["adversary"] |= {"epsilon": epsilon or of.epsilon}
    settings["training"] |= {"epochs": epochs or of.experiment.epochs, "decays": []}
    with patch("os.fsync"):
        store.make_directory(path)
        store.write_json(path / "experiment.json", settings)
        store.write(path / "metrics.jsonl", (of.path / "metrics.jsonl").read_bytes())
    return replace(of, path=path)


def everything(path: Path) -> ReportRun:
    """A run with whatever lies in its directory."""
    directory = path / "records"
    files = [str(found.relative_to(directory)) for found in sorted(directory.rglob("*.record"))]
    checked = [CHECKLIST] if (directory / CHECKLIST).exists() else []
    return load_run(path, title(ReportRun(path, "").method), [*files, *checked])


def target(name: str, settings: Experiment, examples: int = EXAMPLES) -> Target:
    """What the jobs take for the trained network and its test examples."""
    with isolated(0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(P, CLASSES))
    F = bayesian(module, 0.1) if settings.random else Dirac(module)
    images = torch.linspace(0, 1, EXAMPLES * P).reshape(EXAMPLES, 1, SIDE, SIDE)
    data = Examples(images, torch.arange(EXAMPLES) % CLASSES, torch.arange(EXAMPLES), settings.data.name, "test")
    facts = {"method": settings.method, "lam": settings.lam}
    return Target(F, data, name, n_ensemble=ENSEMBLE, batch=25, facts=facts).take(slice(0, examples))


def write(out: Path, job: Job[Any], arrays: dict[str, np.ndarray]) -> None:
    """The record of a job, as if it had computed these arrays."""
    known = {"ids": np.arange(job.examples), "labels": np.arange(job.examples) % CLASSES}
    made = job.record.made(job.description, known | arrays, job.file)
    store.write_arrays(out / job.file, made.arrays, job.description)


def write_log(path: Path, lines: list[dict[str, Any]]) -> None:
    """metrics.jsonl with its checksums."""
    written = Log(path / "metrics.jsonl")
    for line in lines:
        written(**line)
    written.close()


def log(rng: np.random.Generator, rho: float, settings: Experiment) -> list[dict[str, Any]]:
    """metrics.jsonl."""
    lines: list[dict[str, Any]] = [{"event": "start", "versions": {"graddiv": "0"}, "processes": 1, "device": "cpu"}]
    stages = [stage for stage in settings.schedule for _ in range(stage.epochs)]
    for epoch in range(settings.epochs + 1):
        regularized = {"graddiv": 0.01, "lam": settings.lam} if epoch and stages[epoch - 1].graddiv else {}
        c = (0.8 + (rho**2 - 0.8) * epoch / settings.epochs) * rng.uniform(0.9, 1.1)
        measures = {"R_kappa": 3 * c / (1 - c * 0.9), "R_mean": c, "R_dpp": 2 * c**2, "R_max": c**0.7}
        found = {"usable": 1.0, **measures, "R_smoothmax": 1.8 + c, "rho": c**0.5, "rho_error": 0.01, "norm": 1.0}
        parts = {"loss": 2.0 / max(1, epoch), "adversarial": 1.0, "kl": 0.1, **regularized} if epoch else {}
        speed = {"sigma": {"0.weight": [0.05, 0.05]}, "images_per_second": 200.0} if epoch else {}
        lines.append({"event": "epoch", "epoch": epoch, **parts, **found, **speed})
    return lines


def attack_cells(
    random: bool, attacks: tuple[Attack, ...] = ATTACKS, epsilons: tuple[float, ...] = EPSILONS, repeats: int = 2
) -> list[Cell]:
    """A table of attacks at each radius, and at 0.2 PGD for several n and m, SPGD for several m."""
    found = cells(attacks, epsilons, n=10, repeats=repeats, random=random)
    if any(attack.name == "PGD" for attack in attacks):
        mode = "eot" if random else "fixed"
        found += [Cell(PGD(m=20), mode, n, 0.2, 0) for n in (5, 20)]
        found += [Cell(PGD(m=m), mode, 10, 0.2, 0) for m in (5, 50)]
        found += [Cell(StochasticPGD(m=m), mode, 4, 0.2, 0) for m in (25, 100) if random]
    return list(dict.fromkeys(found))


def write_attack(path: Path, of: Target, cell: Cell, rng: np.random.Generator, rho: float = 0.5) -> None:
    """About as robust at large epsilon as gradients are diverse."""
    job = attack_job(of, cell)
    b, m = job.examples, job.description["m"]
    power = (
        STRENGTH.get(cell.attack.name, 1.0) * (0.7 + 0.3 * (1 - 1 / cell.n)) * (1 - 1 / (1 + m)) if cell.attack else 0
    )
    margin = rng.normal(-0.8 + 4 * power * cell.epsilon * (0.4 + rho), 0.4, b).astype(np.float32)
    again = margin + rng.normal(0, 0.1, b).astype(np.float32)
    arrays = {
        "distance": np.full(b, cell.epsilon, np.float32),
        "images": rng.random((min(b, KEPT_IMAGES), 1, SIDE, SIDE), np.float32),
        **{f"cost_{name}": np.full(b, cell.n * m) for name in ("forwards", "backwards", "draws")},
        "correct": margin < 0,
        "margin": margin,
        "correct_again": again < 0,
        "margin_again": again,
        "right": rng.random((b, ENSEMBLE)) < 1 / (1 + np.exp(4 * margin))[:, None],
    }
    write(path / "records", job, arrays)


def write_measurements(path: Path, of: Target, rng: np.random.Generator, rho: float) -> None:
    """One record of each kind of measurement, of rotation one in each norm."""
    out = path / "records"
    each = np.clip(rng.normal(rho, 0.08, EXAMPLES), 0.05, 0.95).astype(np.float32)
    usable = np.arange(EXAMPLES) != 3
    kappa = each * (P - each**2) / (1 - each**2)
    measured = {
        "rho": each,
        "rho_1": each * 0.9,
        "rho_debiased": each * 0.97,
        "mean_cosine": each**2,
        "kappa": kappa,
        "kappa_mle": kappa * 0.99,
        "norm_ratio": each,
    }
    concentration = {name: np.where(usable, values, np.nan).astype(np.float32) for name, values in measured.items()}
    write(out, concentration_job(of, n=100), {**concentration, "usable": usable})

    q = (each**2 / (1 - each**2))[:, None] * np.array([1, 4], np.float32)
    cosine = 1 / (1 + 1 / (20 * q))
    lengths = {"mean_length": np.sqrt(q), "trace": np.ones_like(q), "q": q}
    noise = {"rho": np.sqrt(q / (1 + q)), **lengths, "predicted": cosine, "measured": cosine * 0.99}
    write(out, gradient_noise_job(of, epsilon=0.36), {name: a.astype(np.float32) for name, a in noise.items()})

    cosine = np.clip(rng.normal(rho**2, 0.05, (EXAMPLES, len(SHARES))), 0.01, 1).astype(np.float32)
    write(out, nearby_job(of, epsilon=0.2), {"mean_cosine": cosine, "length": 1 + cosine})

    k, n, shown = 4, 30, 10
    centre = np.random.default_rng(1).normal(size=P)
    v = centre / np.linalg.norm(centre) + np.sqrt((1 / rho**2 - 1) / P) * rng.normal(size=(k, n, P))
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    images = rng.random((k, 1, SIDE, SIDE), np.float32)
    cosines = (v @ v.transpose(0, 2, 1)).astype(np.float32)
    job = gradients_job(of, n=n, examples=k)
    write(out, job, {"gradients": v.astype(np.float16), "cosines": cosines, "images": images})

    delta = np.abs(rng.normal(4 * rho, 0.8, EXAMPLES)).astype(np.float32)
    increase = {"increase": delta, "first_order": delta, "theorem": 1.5 * delta}
    ratios = {"tightness": np.full(EXAMPLES, 1 / 1.5, np.float32), "excess": np.ones(EXAMPLES, np.float32)}
    write(out, loss_increase_job(of, epsilon=0.3), {**increase, **ratios, "holds": delta > 0.1})

    falling = np.abs(np.cos(np.radians(ANGLES))) * rng.normal(3, 0.3, (EXAMPLES, 1))
    turned = {
        "right": rng.random((EXAMPLES, len(ANGLES))) > falling / 4,
        "loss": np.full(EXAMPLES, 0.1, np.float32),
        "right_clean": np.ones(EXAMPLES, bool),
    }
    linf = rotation_job(of, epsilon=0.3, angles=ANGLES)
    l2 = rotation_job(of, epsilon=0.6, geometry=L2(), angles=ANGLES)
    write(out, linf, {**turned, "increase": falling.astype(np.float32)})
    write(out, l2, {**turned, "increase": (falling**1.2).astype(np.float32)})

    side = np.linspace(-1.5, 1.5, 13)
    cut = rng.normal(0.8, 0.5 * (1 - rho), (k, shown + 1, 1, 1)) + rng.normal(0, 0.3, (k, shown + 1, 1, 1)) * side
    regions = np.where(side[:, None] > cut, 3, np.where(side[None] > 1.1, 7, 0)).astype(np.uint8)
    axes = rng.choice([-0.2, 0.2], (k, 2, 1, SIDE, SIDE)).astype(np.float32)
    write(
        out, boundary_job(of, epsilon=0.3, grid=13, models=shown), {"regions": regions, "axes": axes, "images": images}
    )

    judged = rng.random((EXAMPLES, MODELS, MODELS)) < 0.9 - 0.5 * rho
    judged[:, np.arange(MODELS), np.arange(MODELS)] = rng.random((EXAMPLES, MODELS)) < 0.2
    write(out, transfer_job(of, epsilon=0.3, k=MODELS), {"right": judged})
    write(out, ensemble_size_job(of, n=9), {"right": rng.random((EXAMPLES, 9)) < 0.9})
    write(out, attacked_ensemble_job(of, epsilon=0.36, n=9), {"right": rng.random((EXAMPLES, 9)) < 0.5})
    along = rng.random((3, EXAMPLES, len(STEPS))).astype(np.float32)
    write(out, path_job(of, epsilon=0.36), dict(zip(("mean_cosine", "length", "margin"), along, strict=True)))
    lost = (rng.normal(-5, 1, (EXAMPLES, 1)) + 12 * np.array(DISTANCES)).astype(np.float32)
    write(out, contrast_job(of), {"margin": lost, "right": lost < 0})
    silenced = np.linspace(rho**2, 0.5, 9) + rng.normal(0, 0.01, (EXAMPLES, 9))
    answers = rng.random((EXAMPLES, 9)) < np.linspace(0.9, 0.3, 9)
    filtered = replace(of, F=bayesian(nn.Conv2d(1, 8, 3), 0.1))
    write(out, filters_job(filtered, epsilon=0.36), {"mean_cosine": silenced.astype(np.float32), "right": answers})
    share, label = rng.random(EXAMPLES).astype(np.float32), np.arange(EXAMPLES) % CLASSES
    verdict = {"label": label, "share": share, "radius": np.zeros_like(share), "correct": share > 0.5}
    write(out, certificate_job(of, draws=9), verdict)


def write_checklist(path: Path, lam: float) -> None:
    """checklist.json."""
    fewer = f"Square leaves {'more' if lam else 'fewer'} examples right than PGD."
    items = [
        Item("success grows with epsilon", "pass", "It does.", {}),
        Item("black-box attacks do no better", "pass" if lam else "fail", fewer, {"square": [12, 40], "pgd": [16, 40]}),
    ]
    content = {
        "target": path.name,
        "epsilon": 0.2,
        "examples": EXAMPLES,
        "settings": settings_of(BUDGETS["checklist"]["quick"]),
        "items": [item._asdict() for item in items],
    }
    store.write_json(path / "records" / CHECKLIST, content)
