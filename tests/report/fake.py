"""Run directories as training, attacks and measurements leave them, with numbers from a generator: always the same."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from graddiv.records import Record
from graddiv.report.study import RunFiles, Study

SIDE, CLASSES, EXAMPLES, MODELS = 8, 10, 40, 4
P = SIDE * SIDE
EPSILONS = (0.1, 0.2, 0.3)
ANGLES = list(range(0, 91, 10))

TITLES = {
    "no-defense": "No defense",
    "adv-train": "Adv. train",
    "rse": "RSE",
    "adv-bnn": "Adv-BNN",
    "adv-bnn+graddiv": "Adv-BNN + GradDiv",
    **{f"adv-bnn+graddiv-{R}": f"Adv-BNN + GradDiv-{R}" for R in ("kappa", "mean", "dpp", "max", "smoothmax")},
}
NOISE = {"adv-bnn": "gaussian", "rse": "rse"}


def study(
    directory: Path, methods: tuple[str, ...] = ("adv-bnn", "adv-bnn+graddiv"), lams: tuple[float, ...] = (0.3,)
) -> Study:
    """A study of these methods, those with GradDiv once for each weight."""
    runs = []
    for method in methods:
        for lam in lams if "+graddiv" in method else (0.0,):
            runs.append(run(directory / f"{method}-{lam:g}", method, lam))
    return Study(tuple(runs), "demo")


def run(path: Path, method: str, lam: float = 0.0, data: str = "mnist-mini", **attacks: Any) -> RunFiles:
    """A run with all kinds of records; keyword arguments go to `attack_records`."""
    (path / "records").mkdir(parents=True)
    base, regularizer = method.split("+")[0], method.partition("+graddiv")[2].removeprefix("-") or "kappa"
    experiment = {
        "method": method,
        "scale": "demo",
        "seed": 0,
        "data": {"name": data, "examples": 4500},
        "network": {"architecture": "mnist_cnn", "width": 0.25},
        "training": {"epochs": 10, "batch": 128, "lr": 0.002, "decays": [8], "decay": 0.1, "checkpoint_every": 0},
        "adversary": None if method == "no-defense" else {"epsilon": 0.2, "m": 5, "alpha": 0.4},
        "gaussian": None,
        "pni": None,
        "rse": None,
        "mixup": None,
        "graddiv": {"regularizer": regularizer, "lam": lam, "n": 3, "warmup": 1, "rampup": 4} if lam else None,
    }
    if base in NOISE:
        experiment[NOISE[base]] = {}
    (path / "experiment.json").write_text(json.dumps(experiment))
    rng = np.random.default_rng([*path.name.encode()])
    rho = 0.7 / (1 + 4 * lam)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log(rng, rho)))
    found = attack_records(rng, path.name, base in NOISE, rho, data, **attacks)
    if base in NOISE:
        found |= measurements(rng, path.name, rho, data)
    with patch("os.fsync"):  # no power cut is feared here, and waiting for the disk takes longer than all else
        for name, record in found.items():
            record.save(path / "records" / f"{name}.record")
    if base in NOISE:
        items = [
            {"name": "success grows with epsilon", "verdict": "pass", "sentence": "It does.", "evidence": {}},
            {
                "name": "black-box attacks do no better",
                "verdict": "pass" if lam else "fail",
                "sentence": f"Square leaves {'more' if lam else 'fewer'} examples right than PGD.",
                "evidence": {"square": [12, 40], "pgd": [16, 40]},
            },
        ]
        checklist = {"target": path.name, "epsilon": 0.2, "settings": {}, "items": items}
        (path / "records" / "checklist.json").write_text(json.dumps(checklist))
    return RunFiles(path, TITLES.get(method, method))


def log(rng: np.random.Generator, rho: float) -> list[dict[str, Any]]:
    """metrics.jsonl."""
    lines: list[dict[str, Any]] = [{"event": "start", "processes": 1, "device": "cpu"}]
    for epoch in range(11):
        c = (0.8 + (rho**2 - 0.8) * epoch / 10) * rng.uniform(0.9, 1.1)
        measures = {"R_kappa": 3 * c / (1 - c * 0.9), "R_mean": c, "R_dpp": 2 * c**2, "R_max": c**0.7}
        line = {"event": "epoch", "epoch": epoch, "probed": 512, **measures, "R_smoothmax": 1.8 + c, "rho": c**0.5}
        lines.append(line if epoch == 0 else {**line, "loss": 2.0 / epoch, "lam": 0.1, "images_per_second": 200.0})
    return lines


def common(target: str, data: str, examples: int = EXAMPLES) -> dict[str, Any]:
    """What every description says."""
    return {
        "target": target,
        "parameters": "0" * 64,
        "data": {"name": data, "split": "test", "sha256": "1" * 64},
        "examples": examples,
        "n_ensemble": 20,
        "seed": 0,
        "batch": 25,
    }


def attack_records(
    rng: np.random.Generator,
    target: str,
    random: bool,
    rho: float,
    data: str,
    attacks: tuple[str, ...] = ("FGSM", "PGD", "Square"),
    epsilons: tuple[float, ...] = EPSILONS,
    repeats: int = 2,
) -> dict[str, Record]:
    """Attack records, and PGD for several n and m; about as robust at large epsilon as gradients are diverse."""
    found = {}
    strength = {"clean": 0.0, "FGSM": 0.7, "Square": 0.3}
    modes = ("fixed", "eot1", "eot") if random else ("fixed",)

    def add(name: str, attack: str, mode: str, n: int, m: int, epsilon: float, repeat: int) -> None:
        prefix = {"fixed": "", "eot1": "EOT^1-", "eot": "EOT-"}[mode] if attack != "clean" else ""
        power = strength.get(attack, 1.0) * (0.7 + 0.3 * (1 - 1 / n)) * (1 - 1 / (1 + m))
        margin = rng.normal(-0.8 + 4 * power * epsilon * (0.4 + rho), 0.4, EXAMPLES).astype(np.float32)
        again = margin + rng.normal(0, 0.1, EXAMPLES).astype(np.float32)
        description = {
            "label": f"{prefix}{attack}",
            "attack": None if attack == "clean" else {"name": attack, "norm": "Linf", "bounds": [0.0, 1.0], "m": m},
            "mode": mode,
            "n": n,
            "m": m,
            "restarts": 0 if attack == "clean" else 1,
            "epsilon": epsilon,
            "repeat": repeat,
            **common(target, data),
        }
        arrays = {
            "ids": np.arange(EXAMPLES),
            "labels": np.arange(EXAMPLES) % CLASSES,
            "distance": np.full(EXAMPLES, epsilon, np.float32),
            "images": rng.random((20, 1, SIDE, SIDE), np.float32),
            "cost_forwards": np.array([n * m]),
            "cost_backwards": np.array([n * m]),
            "cost_draws": np.array([n * m]),
            "correct": margin < 0,
            "margin": margin,
            "correct_again": again < 0,
            "margin_again": again,
            "right": rng.random((EXAMPLES, 20)) < 1 / (1 + np.exp(4 * margin))[:, None],
        }
        found[name] = Record(description, arrays)

    for repeat in range(repeats):
        add(f"clean-r{repeat}", "clean", "fixed", 1, 0, 0.0, repeat)
        for epsilon in epsilons:
            for attack in attacks:
                for mode in modes:
                    m, n = (1 if attack == "FGSM" else 20), (10 if mode == "eot" else 1)
                    name = f"{attack.lower()}-{mode}-eps{epsilon:g}-r{repeat}"
                    add(name, attack, mode, n, m, epsilon, repeat)
    if "PGD" in attacks:
        for n in (5, 20):
            add(f"pgd-eot{n}-r0", "PGD", "eot" if random else "fixed", n if random else 1, 20, 0.2, 0)
        for m in (5, 50):
            add(f"pgd-m{m}-r0", "PGD", "eot" if random else "fixed", 10 if random else 1, m, 0.2, 0)
    return found


def measurements(rng: np.random.Generator, target: str, rho: float, data: str) -> dict[str, Record]:
    """One record of each kind of measurement."""

    def record(kind: str, arrays: dict[str, np.ndarray], examples: int = EXAMPLES, **settings: Any) -> Record:
        ids = {"ids": np.arange(examples), "labels": np.arange(examples) % CLASSES}
        return Record({"kind": kind, **settings, **common(target, data, examples)}, ids | arrays)

    each = np.clip(rng.normal(rho, 0.08, EXAMPLES), 0.05, 0.95).astype(np.float32)
    usable = np.arange(EXAMPLES) != 3
    kappa = each * (P - each**2) / (1 - each**2)
    concentration = {
        name: np.where(usable, values, np.nan).astype(np.float32)
        for name, values in {
            "rho": each,
            "rho_1": each * 0.9,
            "rho_debiased": each * 0.97,
            "mean_cosine": each**2,
            "kappa": kappa,
            "kappa_mle": kappa * 0.99,
            "norm_ratio": each,
        }.items()
    }
    k, n, shown = 4, 30, 5
    centre = np.random.default_rng(1).normal(size=P)
    spread = np.sqrt(1 / rho**2 - 1) / np.sqrt(P)
    v = centre / np.linalg.norm(centre) + spread * rng.normal(size=(k, n, P))
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    gradients = {
        "gradients": v.astype(np.float16),
        "cosines": (v @ v.transpose(0, 2, 1)).astype(np.float32),
        "images": rng.random((k, 1, SIDE, SIDE), np.float32),
    }
    delta = np.abs(rng.normal(4 * rho, 0.8, EXAMPLES))
    ones = np.ones(EXAMPLES)
    increase = {
        "increase": delta,
        "first_order": delta,
        "theorem": 1.5 * delta,
        "tightness": ones / 1.5,
        "excess": ones,
    }
    falling = np.abs(np.cos(np.radians(ANGLES))) * rng.normal(3, 0.3, (EXAMPLES, 1))
    turned = {
        "increase": falling.astype(np.float32),
        "right": rng.random((EXAMPLES, len(ANGLES))) > falling / 4,
        "loss": np.full(EXAMPLES, 0.1, np.float32),
        "right_clean": np.ones(EXAMPLES, bool),
    }
    grid = np.linspace(-1.5, 1.5, 13)
    cut = rng.normal(0.8, 0.5 * (1 - rho), (k, shown + 1, 1, 1)) + rng.normal(0, 0.3, (k, shown + 1, 1, 1)) * grid
    regions = np.where(grid[:, None] > cut, 3, np.where(grid[None] > 1.1, 7, 0)).astype(np.uint8)
    axes = rng.choice([-0.2, 0.2], (k, 2, 1, SIDE, SIDE)).astype(np.float32)
    judged = rng.random((EXAMPLES, MODELS, MODELS)) < 0.9 - 0.5 * rho
    judged[:, np.arange(MODELS), np.arange(MODELS)] = rng.random((EXAMPLES, MODELS)) < 0.2
    return {
        "concentration": record("concentration", concentration | {"usable": usable}, n=100, p=P),
        "gradients": record("gradients", gradients, k, n=n, p=P),
        "loss-increase-eps0.3": record(
            "loss-increase",
            {name: a.astype(np.float32) for name, a in increase.items()} | {"holds": delta > 0.1},
            **{"epsilon": 0.3, "n": 20, "m": 20, "alpha": 0.25, "fresh": 20, "gradients": 100},
        ),
        "rotation-linf-eps0.3": record("rotation", turned, norm="Linf", epsilon=0.3, m=20, alpha=0.25, angles=ANGLES),
        "rotation-l2-eps2.1": record(
            "rotation",
            turned | {"increase": turned["increase"] ** 1.2},
            norm="L2",
            epsilon=2.1,
            m=20,
            alpha=0.25,
            angles=ANGLES,
        ),
        "boundary-eps0.3": record(
            "boundary",
            {"regions": regions, "axes": axes, "images": gradients["images"]},
            k,
            **{"epsilon": 0.3, "n": 10, "m": 20, "models": shown, "coordinates": grid.tolist(), "classes": CLASSES},
        ),
        "transfer-eps0.3": record("transfer", {"right": judged}, k=MODELS, epsilon=0.3, m=20),
    }
