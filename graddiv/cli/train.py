"""`graddiv train`, `graddiv tune` and `graddiv recipes`."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from graddiv.cli.options import Machine, Training, command, number, numbers, suggest, words
from graddiv.errors import GradDivError
from graddiv.progress import Bar, leads, shown
from graddiv.progress import tensorboard as curves

if TYPE_CHECKING:
    from graddiv.experiment import Experiment


@command
def train(
    recipe: str, /, *, training: Training, start: Path | None = None, out: Path | None = None,
    sync_batch_norm: bool = False, tensorboard: bool = False, machine: Machine,
) -> None:  # fmt: skip
    """Train a network from a recipe.

    graddiv train mnist-mini/adv-bnn+graddiv --scale demo

    graddiv train mnist-mini/adv-bnn --set data.file=xs.npz --set network.architecture=models.py:make

    graddiv train mnist/adv-bnn --scale quick --set adversary.epsilon=0.2

    Without --scale it is a demo of minutes.  A training that was stopped or killed loses at most one epoch or two
    minutes.  Run the same command again to continue: the result is the same.

    For several processes or machines: torchrun --nproc-per-node N --nnodes M -m graddiv -- train ...
    """
    experiment = training.experiment(recipe, start)
    directory = out or Path("runs") / experiment.run_name
    from graddiv.recipes import title
    from graddiv.runs import Run
    from graddiv.training import train as run

    about = f"{title(experiment.method)} on {experiment.data.name}, scale {experiment.scale}"
    typer.echo(f"{about}: about {_prepare(experiment, machine)} on this machine")
    typer.echo(f"run directory: {directory}")
    with Bar(stderr=False) as bar:
        listeners = [shown(bar, experiment.method)]
        if tensorboard and leads():
            listeners.append(curves(Run(directory).tensorboard))
        run(
            experiment, directory, data_root=machine.data_root, device=machine.device, sync_batch_norm=sync_batch_norm,
            listeners=listeners,
        )  # fmt: skip
    typer.echo(f"trained: {directory}")
    suggest(f"graddiv attack {directory}, or graddiv audit {directory}")


@command
def tune(
    recipe: str, /, *, training: Training, out: Path | None = None, lambdas: str = "", regularizers: str = "",
    sampler: str = "grid", trials: int = 20, storage: str | None = None, n: int = 10, m: int = 20, epsilon: str = "",
    examples: int = 500, machine: Machine,
) -> None:  # fmt: skip
    """Choose lambda and the regularizer by accuracy under EOT-PGD, on validation data and never on test data.

    graddiv tune mnist/adv-bnn+graddiv --scale quick --lambdas 0.1,0.3,1,3

    graddiv tune mnist/adv-bnn+graddiv --scale quick --regularizers kappa,dpp

    graddiv tune mnist-mini/adv-bnn+graddiv --set data.file=xs.npz

    Each trial is an ordinary run below --out.  Run the same command again to continue.  Several machines can share the
    trials if they are given the same --storage.
    """
    experiment = training.experiment(recipe)
    from graddiv import tuning
    from graddiv.cli.show import print_rows
    from graddiv.recipes import LAMBDAS, radius

    among = tuple(words(regularizers)) or (tuning.own_regularizer(experiment),)
    search = tuning.Search(among, tuple(numbers(lambdas)) or LAMBDAS, sampler, trials)
    judge = tuning.Judge(number(epsilon) if epsilon else radius(experiment), n, m, examples)
    directory = out or Path("runs") / f"tune-{experiment.run_name}"
    each = _prepare(experiment, machine)
    typer.echo(f"{search.size} trials, each about {each} on this machine, in {directory}")
    with Bar(stderr=False) as bar:
        results = tuning.tune(
            experiment, directory, search, judge, storage=storage, data_root=machine.data_root, device=machine.device,
            listener=partial(shown, bar),
        )  # fmt: skip
    tuning.write(results, judge, directory)
    rows = []
    for r in results:
        accuracies = ["diverged" if share is None else f"{100 * share:.1f}" for share in (r.clean, r.robust)]
        rows.append((f"{r.lam:g}", r.regularizer, *accuracies, "" if r.rho is None else f"{r.rho:.3f}"))
    print_rows(("lambda", "regularizer", "clean", "EOT-PGD", "rho"), rows)
    if results and (best := results[0]).robust is not None:
        typer.echo(f"best: --set graddiv.regularizer={best.regularizer} --set graddiv.lam={best.lam}")
        suggest("graddiv train with these settings, and another --seed if you report its accuracy")
    else:
        suggest("the same with smaller --lambdas: no trial came to an end without diverging")


def _prepare(experiment: "Experiment", machine: Machine) -> str:
    """Check that the data set is here; run the network for two seconds and return an estimate of the training time."""
    from graddiv.data.files import fetch_command, locate
    from graddiv.distributed import chosen_device
    from graddiv.experiment import duration, training_seconds
    from graddiv.performance import keep_memory

    source, root = experiment.data.source, machine.data_root
    if any(locate(source, file, root) is None for file in source.files.get("train", ())):
        raise GradDivError(
            f"data set '{source.name}' is missing: get it with '{fetch_command(source, root)}', or take mnist-mini, "
            "which comes with the package, as in 'graddiv train mnist-mini/adv-bnn'"
        )
    keep_memory()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    seconds = training_seconds(experiment, str(chosen_device(machine.device))) if leads() else 0.0
    return duration(seconds / processes)


@command
def recipes(recipe: str = "", /, *, training: Training) -> None:
    """List the recipes with the training time at each scale, or print one as a TOML file for 'graddiv train'.

    graddiv recipes

    graddiv recipes mnist/adv-bnn --scale quick --set data.file=xs.npz
    """
    if recipe:
        typer.echo(training.experiment(recipe).to_toml(), nl=False)
        suggest("graddiv train FILE.toml, with this text in it, changed as you like")
        return
    from graddiv.cli.show import print_rows
    from graddiv.diversity import REGULARIZERS
    from graddiv.recipes import SCALES, names, title
    from graddiv.recipes import recipe as load

    rows = [(name, title(load(name).method), *(load(name, scale).cost for scale in SCALES)) for name in names()]
    print_rows(("recipe", "method", *SCALES), rows)
    typer.echo(
        "\nCosts are rough, and for two CPU cores."
        f"\n+graddiv-REGULARIZER chooses another regularizer, one of {', '.join(REGULARIZERS)}."
        "\n'graddiv recipes NAME --scale quick' prints one in full, to start your own from."
    )
    suggest("graddiv train NAME")
