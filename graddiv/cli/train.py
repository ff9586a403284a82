"""`graddiv train`, `graddiv tune` and `graddiv recipes`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graddiv.cli.common import beginning, leads, number, suggest, words
from graddiv.cli.data import DataRoot

if TYPE_CHECKING:
    from graddiv.experiment import Experiment
    from graddiv.tuning import Result


def _recipes() -> Iterable[str]:
    from graddiv.recipes import names

    return names()


def scales() -> Iterable[str]:
    """For the shell to complete."""
    from graddiv.recipes import SCALES

    return SCALES


Recipe = Annotated[
    str,
    typer.Argument(
        help="A shipped recipe such as mnist/adv-bnn+graddiv (see 'graddiv recipes'), or a TOML file.",
        autocompletion=beginning(_recipes),
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        help="paper: the paper's settings. quick: for two CPU cores. demo: minutes, to see it run. A file has its own.",
        autocompletion=beginning(scales),
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as adversary.epsilon=8/255. Repeatable."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random; 0 unless the recipe says otherwise.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; CUDA if there is any.")]

app = typer.Typer(help="List the shipped recipes, or print one.", invoke_without_command=True)


def train(
    recipe: Recipe,
    scale: Scale = "paper",
    overrides: Overrides = [],  # noqa: B006 -- Typer copies it
    seed: Seed = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Start from this trained network, a run directory or a safetensors file: it takes the place of the "
            "first stage of a recipe with two, such as mnist/adv-bnn+graddiv at scale quick.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; runs/NAME-HASH if not given.")] = None,
    data_root: DataRoot = None,
    device: Device = None,
    sync_batch_norm: Annotated[
        bool, typer.Option("--sync-batch-norm", help="Batch norm over all processes' images (CUDA only).")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
) -> None:
    """Train one of the paper's methods; the same command again goes on where it stopped.

    Killed at any moment it loses at most an epoch or two minutes, and ends with the same bits as if it had not been.

    On several processes or machines: torchrun --nproc-per-node N --nnodes M -m graddiv -- train ...
    """
    experiment = _experiment(recipe, scale, overrides, seed, start)
    directory = out or Path("runs") / experiment.run_name
    from graddiv.performance import keep_memory
    from graddiv.recipes import title
    from graddiv.runs import Run
    from graddiv.training import train as run
    from graddiv.training.display import Display, TensorBoard
    from graddiv.training.loop import Listener

    keep_memory()
    if leads():
        about = f"{title(experiment.method)} on {experiment.data.name}, scale {experiment.scale}"
        typer.echo(f"{about}: about {_training_time(experiment, device)} on this machine")
        typer.echo(f"run directory: {directory}")
    with Display(experiment.method, quiet=not leads()) as display:
        listeners: list[Listener] = [display]
        if tensorboard and leads():
            listeners.append(TensorBoard(Run(directory).tensorboard))
        run(
            experiment,
            directory,
            data_root=str(data_root) if data_root else None,
            device=device,
            sync_batch_norm=sync_batch_norm,
            listeners=listeners,
        )
    if leads():
        typer.echo(f"trained: {directory}")
        suggest(f"graddiv attack {directory}, or graddiv audit {directory}")


def tune(
    recipe: Recipe,
    scale: Scale = "paper",
    overrides: Overrides = [],  # noqa: B006
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="Directory of all trials; runs/tune-NAME-HASH if not given.")] = None,
    data_root: DataRoot = None,
    device: Device = None,
    lambdas: Annotated[str | None, typer.Option(help="Values to try; default: nine from 0.05 to 10.")] = None,
    regularizers: Annotated[str | None, typer.Option(help="Such as kappa,dpp; default: the recipe's own.")] = None,
    sampler: Annotated[
        str, typer.Option(help="grid: every pair. tpe, random: Optuna's, between the lambdas.")
    ] = "grid",
    trials: Annotated[int, typer.Option(help="How many points tpe and random try.")] = 20,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna URL from which several machines take trials; default: a file in --out.", metavar="URL"
        ),
    ] = None,
    n: Annotated[int, typer.Option(help="Sample models at each step of EOT-PGD.")] = 10,
    m: Annotated[int, typer.Option(help="Steps of EOT-PGD.")] = 20,
    epsilon: Annotated[str | None, typer.Option(help="Radius of EOT-PGD; default: the one of training.")] = None,
    examples: Annotated[int, typer.Option(help="Judge on the first so many validation examples.")] = 500,
) -> None:
    """Choose lambda and the regularizer by accuracy under EOT-PGD on the validation split, never on test data.

    Each trial is an ordinary run below --out.  The same command again goes on where it stopped; given one --storage,
    it may run on several machines at once.
    """
    experiment = _experiment(recipe, scale, overrides, seed)
    from graddiv import tuning
    from graddiv.performance import keep_memory
    from graddiv.recipes import LAMBDAS, radius
    from graddiv.training.display import Display

    keep_memory()
    search = tuning.Search(
        tuple(words(regularizers)) if regularizers else (tuning.own_regularizer(experiment),),
        tuple(map(number, words(lambdas))) if lambdas else LAMBDAS,
        sampler,
        trials,
    )
    judge = tuning.Judge(number(epsilon) if epsilon else radius(experiment), n, m, examples)
    directory = out or Path("runs") / f"tune-{experiment.run_name}"
    typer.echo(f"{search.size} trials, each about {_training_time(experiment, device)} on this machine, in {directory}")
    with Display(experiment.method) as display:
        results = tuning.tune(
            experiment,
            directory,
            search,
            judge,
            storage=storage,
            data_root=str(data_root) if data_root else None,
            device=device,
            listener=display.titled,
        )
    tuning.write_table(results, directory / "tuning.csv")
    tuning.plot(results, judge, directory / "tuning")
    _show(results)
    if results and (best := results[0]).robust is not None:
        typer.echo(f"best: --set graddiv.regularizer={best.regularizer} --set graddiv.lam={best.lam}")
        suggest("graddiv train with these settings, and another --seed if you report its accuracy")
    else:
        suggest("the same with smaller --lambdas: no trial came to an end without diverging")


def _training_time(experiment: "Experiment", device: str | None) -> str:
    """How long training takes here, about; its network is tried for two seconds."""
    from graddiv.distributed import chosen_device
    from graddiv.experiment import duration
    from graddiv.experiment.probe import training_seconds

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return duration(training_seconds(experiment, str(chosen_device(device))) / processes)


def _show(results: "list[Result]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("lambda", "regularizer", "clean", "EOT-PGD", "rho", box=None, pad_edge=False)
    for r in results:
        accuracies = ["diverged" if share is None else f"{100 * share:.1f}" for share in (r.clean, r.robust)]
        table.add_row(f"{r.lam:g}", r.regularizer, *accuracies, "" if r.rho is None else f"{r.rho:.3f}")
    Console().print(table)


@app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes with what they cost at each scale."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Column, Table

    from graddiv.recipes import SCALES, names, recipe, title
    from graddiv.registries import REGULARIZERS

    # names are not cut, however narrow the terminal is: they are there to be copied
    longest = max(map(len, names()))
    table = Table(Column("recipe", no_wrap=True, min_width=longest), "method", *SCALES, box=None, pad_edge=False)
    for name in names():
        costs = [recipe(name, scale).cost for scale in SCALES]
        table.add_row(name, title(recipe(name).method), *costs)
    Console().print(table)
    typer.echo(
        "\nCosts are rough: for this machine where such a network was tried here before, else for two CPU cores."
        "\n+graddiv-REGULARIZER chooses another regularizer, one of "
        f"{', '.join(REGULARIZERS)}.\n"
        "'graddiv recipes show NAME --scale quick' prints one in full, to start your own from."
    )
    suggest("graddiv train NAME --scale demo")


@app.command()
def show(recipe: Recipe, scale: Scale = "paper", overrides: Overrides = []) -> None:  # noqa: B006
    """Print a recipe fully resolved, as a TOML file that 'graddiv train' takes."""
    typer.echo(_experiment(recipe, scale, overrides, None).to_toml(), nl=False)
    suggest("graddiv train FILE.toml, with this text in it, changed as you like")


def _experiment(
    name: str, scale: str, overrides: list[str], seed: int | None, start: Path | None = None
) -> "Experiment":
    from graddiv.recipes import recipe

    return recipe(name, scale, [*overrides, *([f"seed={seed}"] if seed is not None else [])], start)
