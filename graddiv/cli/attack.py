"""`graddiv attack` and `measure` evaluate a trained run, `audit` and `board` any network."""

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from graddiv.cli.options import Evaluation, Machine, command, number, numbers, suggest, whole_numbers, words
from graddiv.errors import GradDivError
from graddiv.progress import Bar

if TYPE_CHECKING:
    from graddiv.attacks import Attack
    from graddiv.evaluation.card import Audit
    from graddiv.evaluation.examples import Bounds
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
def attack(runs: list[Path], /, attacks: Attacks, evaluation: Evaluation, machine: Machine) -> None:
    """Attack trained runs in three modes and print the paper's table of each.

    Success is judged afterwards, by an ensemble of 20 sample models the attack never saw.  Every number comes from
    records, example by example, below RUN/records; the same command again goes on where it stopped, and only
    computes what is missing.

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
    # before data are loaded, since a name may be wrong
    (own, others), strong = attacks.chosen(geometry), attacks.suite == "strong" and not attacks.attacks
    modes, models = [] if strong else parse_modes(words(attacks.modes)), whole_numbers(attacks.n)
    found: list[Any] = []
    directories = []
    with machine.process() as process:
        for run in runs:
            with evaluation.of(run, process, machine, run.name if len(runs) > 1 else "") as (target, radii, session):
                every: dict[str, Any] = {"repeats": attacks.repeats, "random": target.random}
                if strong:  # a pilot chooses n and m
                    passes, repeats = attacks.passes, attacks.repeats
                    wanted = strong_cells(target, radii, session, passes=passes, repeats=repeats, geometry=geometry)
                else:
                    wanted = [cell for n in models for cell in cells(own, radii, modes=modes, n=n, **every)]
                wanted = papers_cells(wanted, target) if attacks.paper_rows else wanted
                beside = [cell for n in models for cell in cells(others, radii, modes=["eot"], n=n, **every)]
                found += how(target, list(dict.fromkeys([*wanted, *beside])), session)
                directories.append(session.directory)
    print_records(found)
    given = {"n": attacks.n, "m": attacks.m, "restarts": attacks.restarts, "epsilon": evaluation.epsilon}
    several = [name for name, text in given.items() if len(words(text)) > 1] + ["lam"] * (len(runs) > 1)
    if len(several) == 1:
        print_curve([record for record in found if isinstance(record, AttackRecord)], several[0])
    for directory in directories:
        typer.echo(f"records: {directory}")
    names = " ".join(map(str, runs))
    suggest(f"graddiv report {names}, or graddiv attack {names} --suite strong")


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
    run: Path, /, *, what: str = "", gradients: int = 100, k: int = 50, m: int = 20, quick: bool = False,
    evaluation: Evaluation, machine: Machine,
) -> None:  # fmt: skip
    """Measure how concentrated a trained run's gradients are, and what an adversary gains by it.

    The figures of a report are drawn from these records, which lie below RUN/records.
    """
    from graddiv.cli.show import print_verdicts
    from graddiv.evaluation.behaviours import checklist
    from graddiv.evaluation.budget import BUDGETS, Budget
    from graddiv.evaluation.measurements import MEASUREMENTS, defined_in

    names, norm = words(what), evaluation.norm
    asked, checked = [defined_in(name, norm) for name in names if name != CHECKLIST], CHECKLIST in names
    if quick and not checked:
        raise GradDivError("--quick shortens the checklist alone, expected --what checklist with it")
    if checked and len(words(evaluation.epsilon)) > 1:
        raise GradDivError(f"--epsilon is {evaluation.epsilon!r}, expected one radius: a checklist is of one")
    if quick:
        out = evaluation.out or run / "records-quick"
        evaluation = replace(evaluation, examples=evaluation.examples or 100, out=out)
    with machine.process() as process, evaluation.of(run, process, machine) as (target, radii, session):
        budget, known = Budget(gradients=gradients, models=k, m=m, norm=norm), MEASUREMENTS.values()
        every = [e for e in known if norm in e.norms and not e.on_request]
        every = [e for e in every if target.random or not e.of_random_networks_only]
        chosen = product(asked if names else every, radii)
        jobs = [job for each, radius in chosen for job in each.jobs(target, radius, budget)]
        different = list({job.file: job for job in jobs}.values())  # some do not depend on the radius
        records, verdicts = session.run(different), []
        if checked:
            spent = BUDGETS["checklist"]["quick" if quick else "standard"]
            verdicts = checklist(target, radii[0], session, budget=spent, geometry=evaluation.geometry)
    for record in records:
        typer.echo(record.summary)
    if checked:
        of = f"epsilon {radii[0]:.4g}, {len(target.data)} {evaluation.split} examples"
        print_verdicts(verdicts, f"{target.name}: {of}")
    typer.echo(f"records: {session.directory}")
    suggest(f"graddiv report {run}" + (f", or graddiv attack {run} --suite strong" if checked else ""))


@command
def audit(
    model: str, /, *, data: str = "", epsilon: str = "", norm: str = "linf", budget: str = "quick",
    bounds: str = "", examples: int | None = None, name: str | None = None, about: list[str] = [],  # noqa: B006
    peers: list[str] = [], out: Path | None = None, seed: int = 0, batch: int = 100, machine: Machine,  # noqa: B006
) -> None:  # fmt: skip
    """Audit any stochastic (or deterministic) network: look, attack, and say what is proved and what is not.

    Writes a page, a card (JSON) and the adversarial examples.  Exits with 0 if the audit is complete, with 3 if its
    evidence is not sufficient.  The same command again goes on where it stopped.  Several processes share the work:
    torchrun --nproc-per-node N -m graddiv -- audit ...
    """
    from graddiv.evaluation.audit import audit as carry_out
    from graddiv.evaluation.examples import read_examples
    from graddiv.evaluation.measurements import l2_radius
    from graddiv.evaluation.models import load_model
    from graddiv.recipes import radius as radius_of_training
    from graddiv.runs import Run

    given, radius = load_model(model), number(epsilon) if epsilon else 8 / 255
    if isinstance(given, Path):
        data = data or Run(given).experiment.data.name
    elif not data:
        raise GradDivError("--data is missing, expected an .npz file with the arrays x and y, or a data set by name")
    x, y = read_examples(data, 100 if examples is None and budget == "quick" else examples, machine.data_root)
    if isinstance(given, Path) and not epsilon:
        radius = radius_of_training(Run(given).experiment)
        radius = radius if norm == "linf" else l2_radius(radius, x[0].numel())
    directory = out or Path("audits") / (name or (given.name if isinstance(given, Path) else model.rpartition(":")[2]))
    with machine.process() as process, Bar() as progress:
        found = carry_out(
            given, x, y, epsilon=radius, norm=norm, bounds=_bounds(bounds),
            budget=budget, name=name, about=_pairs(about), peers=peers, out=directory, seed=seed, batch=batch,
            progress=progress, process=process, device=process.device, data_root=machine.data_root,
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

    graddiv board audits/mine --rescore --model mine.py:factory

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
    """Print the checks that did not pass, how attacks behaved, and the three numbers."""
    from graddiv.cli.show import interval_of, print_titled, print_verdicts

    if odd := [item for item in found.checks.values() if item.verdict != "pass"]:
        print_verdicts(odd, "Before the attacks: what was found")
    print_verdicts(found.indicators, "How the attacks behaved")
    rows = [(name, f"{100 * a.mean:.1f}", f"{100 * b.mean:.1f}", interval_of(b)) for name, a, b in found.rows]
    print_titled("Three numbers", ("", "clean %", "attacked %", "95 % over images"), rows)
    for text in found.shortcomings:
        typer.echo(f"evidence insufficient: {text}")


def _pairs(texts: list[str]) -> dict[str, str]:
    """Parse several KEY=VALUE."""
    if broken := [text for text in texts if "=" not in text]:
        raise GradDivError(f"--about is {broken[0]!r}, expected KEY=VALUE such as authors='A. Author'")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}


def _bounds(text: str) -> "Bounds | None":
    """Parse 0,255, or 0:0:0,1:1:1 for several channels."""
    parts = [numbers(part.replace(":", ",")) for part in words(text)]
    if not parts:
        return None
    if len(parts) != 2:
        raise GradDivError(f"--bounds is {text!r}, expected two numbers such as 0,255")
    low, high = (part[0] if len(part) == 1 else part for part in parts)
    return low, high
