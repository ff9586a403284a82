"""What the numbers of a page do not show."""

from graddiv import records
from graddiv.report.comparison import Comparison
from graddiv.report.grids import Grid
from graddiv.report.texts import percent


def caveats(comparison: Comparison, default: Grid | None) -> list[tuple[str, str]]:
    """Each in a few words and in a sentence with the numbers that matter to it."""
    found = [
        (
            "A finite set of attacks proves no robustness.",
            "Every accuracy under attack is an upper bound: a stronger attack can only lower it.",
        ),
        (
            "Scale.",
            f"Ours were obtained at scale {comparison.scale}. The paper's values, where they stand beside ours, come "
            "from its full training and test sets: compare the pattern, not the digits.",
        ),
    ]
    attacked = [r for run in default.comparison.runs for r in run.attacks if not r.is_clean] if default else []
    if attacked:
        examples, repeats = attacked[0].examples, len({r.repeat for r in attacked})
        low, high = records.wilson(examples / 2, examples)
        found += [
            (
                "Few examples.",
                f"With {examples}, an accuracy of 50 % has a 95 % interval from {percent(low)} to {percent(high)}; "
                "the verdict therefore compares the runs example by example.",
            ),
            (
                "Draws.",
                f"{repeats} repeat{'' if repeats == 1 else 's'} of every attack, each judged by two ensembles of "
                "models that it never saw: ± is the standard deviation over these verdicts.",
            ),
        ]
    seeds = ", ".join(str(seed) for seed in sorted({run.experiment.seed for run in comparison.runs}))
    return [
        *found,
        (
            "Trainings.",
            f"Trained with the seeds {seeds}: how far two trainings of one method differ is in no interval and no "
            "p-value here; where several were made, their spread stands apart.",
        ),
        (
            "Total takes a minimum over noisy verdicts.",
            "That mines chance, and is too low where attacks are equally strong; the cross-fitted Total chooses the "
            "worst attack for each example on one ensemble and scores it on the other. It can still be the lower one, "
            "where the second ensemble happens to be. p-values are of single comparisons.",
        ),
        (
            "Scattered gradients are not robustness.",
            "They make an attack that averages few of them noisier; that no good direction exists does not follow. "
            "ρ is shown debiased, since its plain estimate depends on the number of draws.",
        ),
    ]
