"""The audit from beginning to end: look, attack, double, judge, climb the ladder, write it down.

Every number comes from records below the output directory, so that a second run goes on where the first stopped, and
several processes can share the work.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from graddiv.attacks.peers import peers as peer_attacks
from graddiv.auditing.budget import BUDGETS, Budget
from graddiv.auditing.card import ABOUT
from graddiv.auditing.examine import examine
from graddiv.auditing.inputs import Bounds, inputs_of
from graddiv.auditing.model import Model, dtype_of, network_of
from graddiv.auditing.phases import Auditor
from graddiv.auditing.result import Audit, Subject
from graddiv.distributed import ALONE, Process, chosen_device
from graddiv.errors import GradDivError, GradDivWarning, unknown
from graddiv.evaluation import Target
from graddiv.evaluation.answers import check_answers
from graddiv.evaluation.arguments import check_counts, folder_of
from graddiv.evaluation.batches import WorkListener, writing
from graddiv.extras import require
from graddiv.geometry import L2, Geometry, Linf, in_bytes, radius_of
from graddiv.progress import listening
from graddiv.registries import Registry

NORMS: Registry[Geometry] = Registry("norm", {"linf": Linf(), "l2": L2()})
"""The norms in which perturbations are measured."""

ANSWERS = "answers.json"
"""What the network says of the first images: the file by which an audit that goes on knows it again."""


def audit(
    model: Model,
    x: object,
    y: object = None,
    *,
    epsilon: float,
    norm: str = "linf",
    bounds: Bounds | None = None,
    budget: str | Budget = "quick",
    examples: int | None = None,
    name: str | None = None,
    about: Mapping[str, str] | None = None,
    peers: str | Sequence[str] = (),
    out: str | Path | None = None,
    n_ensemble: int = 20,
    seed: int = 0,
    batch: int = 100,
    progress: bool | WorkListener = False,
    process: Process = ALONE,
    device: torch.device | str | None = None,
    data_root: str | None = None,
) -> Audit:
    """Audit a network: what it is, what attacks leave of it, and how much of that is proved.

        import torch
        from graddiv import audit
        from graddiv.data import load

        x, y = load("mnist-mini", "test").batch(range(100))  # or images and labels of yours, pixels in [0, 1]
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(784, 10))  # or yours
        report = audit(model, x, y, epsilon=8 / 255)
        print(report.robust.ensemble, report.shortcomings)
        report.write("audits/mine")  # the page, the card, the adversarial examples

    Returns an `Audit`.  `clean` and `robust` hold three numbers each, accuracies as shares with their 95 % interval
    (`mean`, `low`, `high`): `per_draw` where one draw answers, `ensemble` where n_ensemble do, `worst[k]` where an
    attacker may ask k times.  `checks` and `indicators` are what was found before and during the attacks,
    `shortcomings` says why the evidence is not sufficient (empty where it is), `complete` and `exit_code` sum that up,
    `ladder` is what an adversary achieves who knows the draws, `x_adv` holds the adversarial examples, `card`
    everything as JSON, and `write(directory)` makes the page.  docs/audit.md explains how to read it.

    model: a module, a RandomizedNetwork, a function x -> logits, a list of modules of which one answers at random, or
        the directory of a run.  In the mode in which it answers: nothing is switched.
    x, y: images and labels as tensors or arrays; or x is a Dataset or DataLoader of both.
    epsilon: the radius, as a share of the range of a pixel: 8/255 whatever the bounds are.
    norm: linf or l2, in which epsilon is measured.
    bounds: the least and the greatest value of a pixel, if they are not 0 and 1; one number or one for each channel.
    budget: quick (minutes, a first look), standard (hours, what to publish), exhaustive (days), or a `Budget`.
    examples: only the first so many; all if None.
    name: what the network is called; by default the name of its class.
    about: what its card says of it: authors, link, dataset, ...
    peers: libraries whose attacks are run too, such as torchattacks.
    out: a directory that then holds everything, the page included (needs the extra [report]); the same call again
        goes on where this one stopped.  If None, nothing is written.
    n_ensemble: the draws of an ensemble.
    seed: of everything random.
    batch: how many images are looked at together.
    progress: whether to show a bar, or a function that is told of the progress.
    process: this process among those that share the work.
    device: where the network goes; it stays where it is if None.
    data_root: the folder of the official data files.
    """
    if out is not None:
        require("report")  # now, not after an hour
    spent = BUDGETS[budget] if isinstance(budget, str) else budget
    for key in about or {}:
        if key not in ABOUT:
            raise unknown("entry of a card", key, ABOUT)
    check_counts(n_ensemble=n_ensemble, batch=batch)
    inputs = inputs_of(x, y, bounds, examples, dtype_of(model))
    geometry, epsilon = NORMS[norm], radius_of(epsilon)
    check_radius(epsilon, geometry, inputs.examples.x[0].numel())
    raw = (inputs.low + (inputs.high - inputs.low) * inputs.examples.x[:2]).to(inputs.examples.x.dtype)
    given = network_of(model, raw, data_root, None if device is None else chosen_device(device))
    found = examine(given, inputs, seed)
    if (kind := found.checks["random"]).verdict == "warn":  # told now, not on a page after minutes of attacks
        warnings.warn(f"{kind.name}? {kind.sentence}", GradDivWarning, stacklevel=2)
    data = inputs.examples
    target = Target(found.F, data, name or given.name, n_ensemble, seed, batch, kept_images=len(data))
    others = tuple(peer_attacks([peers] if isinstance(peers, str) else peers, spent.suite, spent.m)) if peers else ()
    called = budget if isinstance(budget, str) else "own"
    subject = Subject(target, found, spent, called, geometry, epsilon, inputs, dict(about or {}), others)
    directory = folder_of(out)
    with writing(directory, process), listening(progress) as listener:
        if directory is not None and process.writes:
            check_answers(target, directory / ANSWERS)
        made = Auditor(subject, directory and directory / "records", process, listener).audit()
        if directory is not None and process.writes:
            made.write(directory)
        process.wait()
    return made


def check_radius(epsilon: float, geometry: Geometry, pixels: int) -> None:
    """Refuse a radius that is none, or that admits every image."""
    most = geometry.diameter(pixels)
    if not 0 < epsilon < most:
        raise GradDivError(
            f"epsilon is {epsilon:g}, expected a radius above 0 and below {most:.4g}, the size of the box of all "
            f"images with pixels in [0, 1]{in_bytes(epsilon)}"
        )
