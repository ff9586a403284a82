"""`graddiv attack`, `measure`, `audit` and `board`: of trained runs, and of any network."""

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from graddiv.cli.options import Evaluation, Machine, command, suggest, whole_numbers, words
from graddiv.errors import GradDivError
from graddiv.progress import Bar, leads
from graddiv.references import name_of

if TYPE_CHECKING:
    from graddiv.attacks import Attack
    from graddiv.evaluation.card import Audit
    from graddiv.geometry import Geometry

CHECKLIST = "checklist"  #: the name of the measurement that is a list of verdicts


@dataclass(frozen=True)
class Attacks:
    """Options that select attacks and set their cost."""

    suite: str = "quick"
    attacks: str = ""
    modes: str = "fixed,eot1,eot"
    n: str = "10"
    m: str = ""
    restarts: str = "1"
    passes: int = 400
    repeats: int = 1
    peers: list[str] = field(default_factory=list)
    total_only: bool = False
    paper_rows: bool = False

    def chosen(self, geometry: "Geometry") -> "tuple[list[Attack], list[Attack]]":
        """Our attacks, and those of other libraries, with each number of iterations and restarts."""
        from graddiv.attacks.peers import peers
        from graddiv.attacks.suites import suite
        from graddiv.evaluation.budget import with_geometry

        for name in ("n", "restarts"):
            if not words(getattr(self, name)):
                raise GradDivError(f"--{name} has no value, expected a number such as 10, or several such as 1,5,10")
        steps: list[int | None] = [*whole_numbers(self.m)] or [None]
        settings = list(product(steps, whole_numbers(self.restarts)))
        own = [replace(a, restarts=r) for m, r in settings for a in suite(self.suite, words(self.attacks), m)]
        others: list[Attack] = [replace(a, geometry=geometry) for m in steps for a in peers(self.peers, self.suite, m)]
        if self.attacks:
            return [replace(attack, geometry=geometry) for attack in own], others
        made = with_geometry(own, geometry)
        for name in sorted({attack.name for attack in own} - {attack.name for attack in made}):
            typer.echo(f"{name} is left out: it is not made for the norm {geometry.name}", err=True)
        return made, others


@command
def attack(models: list[str], /, attacks: Attacks, evaluation: Evaluation, machine: Machine) -> None:
    """Attack trained runs, or models of yours, in three modes and print the paper's table of each.

    graddiv attack models.py:CNN --data xs.npz --epsilon 8/255

    Success is judged afterwards, by an ensemble of 20 sample models the attack never saw.  Every number comes from
    records, example by example, below RUN/records, or records/NAME for a model of yours; the same command again goes on
    where it stopped, and only computes what is missing.

    Several values of --n, --m, --restarts or --epsilon, such as --n 1,5,10, are compared with everything else equal.
    So are several runs, such as those of several lambda.

    Several processes share the work: torchrun --nproc-per-node N -m graddiv -- attack ...  Without the two dashes alone
    torchrun takes --n and --m for beginnings of its own options; --models and --iterations are the same.
    """
    from graddiv.cli.show import print_curve, print_records
    from graddiv.evaluation import attack_all, attack_until_fooled, cells, papers_cells, strong_cells
    from graddiv.evaluation.robustness import parse_modes
    from graddiv.records import AttackRecord

    geometry, how = evaluation.geometry, attack_until_fooled if attacks.total_only else attack_all
    if evaluation.name and len(models) > 1:
        raise GradDivError(f"--name is given with {len(models)} models, expected one")
    # before data are loaded, since a name may be wrong
    (own, others), strong = attacks.chosen(geometry), attacks.suite == "strong" and not attacks.attacks
    modes, counts = [] if strong else parse_modes(words(attacks.modes)), whole_numbers(attacks.n)
    found: list[Any] = []
    directories = list[Path]()
    with machine.process() as process:
        for model in models:
            with evaluation.of(model, process, machine, several=len(models) > 1) as (target, radii, session):
                every: dict[str, Any] = {"repeats": attacks.repeats, "random": target.random}
                if strong:  # a pilot chooses n and m
                    passes, repeats = attacks.passes, attacks.repeats
                    wanted = strong_cells(target, radii, session, passes=passes, repeats=repeats, geometry=geometry)
                else:
                    wanted = [cell for n in counts for cell in cells(own, radii, modes=modes, n=n, **every)]
                wanted = papers_cells(wanted, target) if attacks.paper_rows else wanted
                beside = [cell for n in counts for cell in cells(others, radii, modes=["eot"], n=n, **every)]
                found += how(target, list(dict.fromkeys([*wanted, *beside])), session)
                directories.append(session.directory or Path())
    print_records(found)
    given = {"n": attacks.n, "m": attacks.m, "restarts": attacks.restarts, "epsilon": evaluation.epsilon}
    records = [record for record in found if isinstance(record, AttackRecord)]
    several = [name for name, text in given.items() if len(words(text)) > 1]
    several += ["lam"] * (len(models) > 1 and all(record.lam is not None for record in records))
    if len(several) == 1:
        print_curve(records, several[0])
    for directory in directories:
        typer.echo(f"records: {directory}")
    repeated = " ".join([*models, *(["--data", evaluation.data] if evaluation.data else [])])
    suggest(f"{_reported(directories)}, or graddiv attack {repeated} --suite strong")


def _reported(directories: list[Path]) -> str:
    """The command that shows these records: a run is named where they lie beside it."""
    from graddiv.runs import Run

    of_runs = [each for each in directories if Run(each.parent).experiment_file.exists() and each.name == "records"]
    return f"graddiv report {' '.join(str(each.parent if each in of_runs else each) for each in directories)}"


class MeasureCommand(TyperCommand):
    """Its help lists the measurements; their registry needs torch, so only this help waits for it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the docstring, then each measurement with the first line about its record."""
        from graddiv.evaluation.measurements import MEASUREMENTS

        about = {name: (each.record.__doc__ or "").strip().splitlines()[0] for name, each in MEASUREMENTS.items()}
        about[CHECKLIST] = "Do gradients hide, and have the attacks converged?  Verdicts; only if asked for."
        self.help = "\n\n".join([self.help or "", *(f"[bold]{name}[/]: {text}" for name, text in about.items())])
        super().format_help(ctx, formatter)


@command
def measure(
    model: str, /, *, what: str = "", gradients: int = 100, k: int = 50, m: int = 20, quick: bool = False,
    evaluation: Evaluation, machine: Machine,
) -> None:  # fmt: skip
    """Measure how concentrated the gradients of a run or a model are, and what an adversary gains by it.

    graddiv measure models.py:CNN --data xs.npz --what concentration,nearby

    The figures of a report are drawn from these records, which lie below RUN/records, or records/NAME for a model of
    yours.  Says about how long it takes before it begins.
    """
    from graddiv.cli.show import print_verdicts
    from graddiv.evaluation.behaviours import checklist
    from graddiv.evaluation.budget import BUDGETS, Budget
    from graddiv.evaluation.measurements import MEASUREMENTS, defined_in
    from graddiv.paper.tasks import checklist_passes

    names, norm = words(what), evaluation.norm
    asked, checked = [defined_in(name, norm) for name in names if name != CHECKLIST], CHECKLIST in names
    if quick and not checked:
        raise GradDivError("--quick shortens the checklist alone, expected --what checklist with it")
    if checked and len(words(evaluation.epsilon)) > 1:
        raise GradDivError(f"--epsilon is {evaluation.epsilon!r}, expected one radius: a checklist is of one")
    if quick:
        evaluation = replace(evaluation, examples=evaluation.examples or 100)
    folder, judged = "records-quick" if quick else "records", evaluation
    with machine.process() as process, judged.of(model, process, machine, folder=folder) as (target, radii, session):
        budget = Budget(gradients=gradients, models=k, m=m, norm=norm)
        every = asked if names else [each for each in MEASUREMENTS.values() if each.suits(target.F, norm)]
        jobs = [job for each, radius in product(every, radii) for job in each.jobs(target, radius, budget)]
        different = list({job.file: job for job in jobs}.values())  # some do not depend on the radius
        spent, passes = BUDGETS["checklist"]["quick" if quick else "standard"], session.passes(different)
        passes += checklist_passes(spent, len(target.data)) / len(target.data) if checked else 0.0
        if passes and leads():
            typer.echo(f"about {_time(target.seconds(passes) / process.size)} on this machine", err=True)
        records, verdicts = session.run(different), []
        if checked:
            verdicts = checklist(target, radii[0], session, budget=spent, geometry=evaluation.geometry)
    for record in records:
        typer.echo(record.summary)
    if checked:
        of = f"epsilon {radii[0]:.4g}, {len(target.data)} {target.data.split} examples"
        print_verdicts(verdicts, f"{target.name}: {of}")
    typer.echo(f"records: {session.directory}")
    again = f", or graddiv attack {model} --suite strong" if checked else ""
    suggest(_reported([session.directory or Path()]) + again)


def _time(seconds: float) -> str:
    """12 s, or 3 min."""
    from graddiv.experiment import duration

    return f"{max(seconds, 1):.0f} s" if seconds < 100 else duration(seconds)


@command
def audit(
    model: str = "", /, *, budget: str = "quick", about: list[str] = [], peers: list[str] = [],  # noqa: B006
    explain: str = "", evaluation: Evaluation, machine: Machine,
) -> None:  # fmt: skip
    """Audit any stochastic (or deterministic) network: look, attack, and say what is proved and what is not.

    graddiv audit models.py:CNN --data xs.npz --epsilon 8/255

    Writes a page, a card (JSON) and the adversarial examples.  Exits with 0 if the audit is complete, with 3 if its
    evidence is not sufficient.  The same command again goes on where it stopped.  Several processes share the work:
    torchrun --nproc-per-node N -m graddiv -- audit ...
    """
    from graddiv.evaluation.audit import audit as carry_out
    from graddiv.evaluation.examples import Examples, examples_of
    from graddiv.evaluation.explanations import explain as explained

    if explain:
        typer.echo(explained(explain))
        return
    if not model:
        raise GradDivError("MODEL is missing, expected file.py:factory or the directory of a run")
    given, run = evaluation.model(model)
    if evaluation.examples is None and budget == "quick":
        evaluation = replace(evaluation, examples=100)
    data = evaluation.examples_for(given, run, machine)
    if not isinstance(data, Examples):
        data = examples_of(data, examples=evaluation.examples)
    (radius,) = evaluation.radii(run, data.x[0].numel())
    name = evaluation.name or None
    directory = evaluation.out or Path("audits") / (name or name_of(model))
    with machine.process() as process, Bar() as progress:
        found = carry_out(
            given, data, epsilon=radius, norm=evaluation.norm, budget=budget, name=name, about=_pairs(about),
            peers=peers, out=directory, seed=evaluation.seed, batch=evaluation.batch, progress=progress,
            process=process, device=process.device, data_root=machine.data_root,
        )  # fmt: skip
    _print(found)
    typer.echo(f"report: {directory / 'report.html'}")
    suggest(f"open it in a browser, the documentation explains it; graddiv board {directory.parent} ranks audits")
    raise typer.Exit(found.exit_code)


@command
def board(
    directory: Path, /, *, rescore: bool = False, model: str = "", images: Path | None = None, who: str = "",
    attack: str = "",
) -> None:  # fmt: skip
    """Make a page that ranks all audited networks below a directory by a lower bound of their accuracy.

    graddiv board audits

    graddiv board audits/CNN --rescore --model models.py:CNN

    With --rescore, check one card: its adversarial examples are scored again, on other draws.  With --images, score
    other adversarial examples; if accuracy is lower on them, the card gets the lower number.
    """
    from graddiv.evaluation.card import board as make
    from graddiv.evaluation.card import rescore as score
    from graddiv.evaluation.models import load_model

    if not (rescore or model or images):
        typer.echo(f"board: {make(directory)}")
        suggest("open it in a browser; graddiv board CARD --rescore --model FILE:FACTORY checks an entry")
        return
    if not model:
        raise GradDivError("--model is missing, expected file.py:factory of the network that the card is of, or a run")
    found = score(directory, load_model(model), images, who=who, attack=attack)
    if not found["same_network"]:
        typer.echo("the parameters are not those that the card was made with")
    typer.echo(f"ensemble: {found['now']}\non the card: {found['before']}")
    typer.echo(f"per draw: {100 * found['per_draw'].mean:.1f} %")
    if images is not None:
        typer.echo("the card is lowered" if found["lowered"] else "the card stays as it is")
    suggest("graddiv board DIRECTORY ranks it again, in the directory that holds the audits")


def _print(found: "Audit") -> None:
    """Print what did not pass before the attacks and of how they behaved, the three numbers, and the verdict."""
    from graddiv.cli.show import interval_of, print_titled, print_verdicts

    print_verdicts([*found.checks.values()], "Before the attacks", fold=True)
    print_verdicts(found.indicators, "How the attacks behaved", fold=True)
    rows = [(name, f"{100 * a.mean:.1f}", f"{100 * b.mean:.1f}", interval_of(b)) for name, a, b in found.rows]
    print_titled("Three numbers", ("", "clean %", "attacked %", "95 % over images"), rows)
    typer.echo("\n".join(found.verdict_lines))


def _pairs(texts: list[str]) -> dict[str, str]:
    """Parse several KEY=VALUE."""
    if broken := [text for text in texts if "=" not in text]:
        raise GradDivError(f"--about is {broken[0]!r}, expected KEY=VALUE such as authors='A. Author'")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}
