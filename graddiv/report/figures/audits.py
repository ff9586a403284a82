"""The figures of an audit, drawn from its card."""

from collections.abc import Mapping
from typing import Any

from graddiv.report import style
from graddiv.report.figures.common import handle, legend_below, panels, styled
from graddiv.report.output import Figure
from graddiv.report.texts import bound

Card = Mapping[str, Any]

ENSEMBLE = style.Look(style.BLACK, "o", style.SOLID)
PER_DRAW = style.Look(style.BLUE, "s", style.DASHED)
WORST = style.Look(style.VERMILLION, "D", style.SOLID)


@styled
def accuracy_epsilon(card: Card) -> Figure:
    """Accuracy under EOT-PGD against epsilon, and what the worst of all attacks leaves at the radius of the audit."""
    figure, (axes,) = panels(1, 1, style.ONE_COLUMN * 1.35, 3.3)
    random = card["randomness"]["random"]
    start = {"epsilon": 0.0, "accuracy": card["clean"]["A_T"]["mean"], "per_draw": card["clean"]["A1"]["mean"]}
    points = [start, *sorted(card["radii"], key=lambda point: point["epsilon"])]
    x = [point["epsilon"] for point in points]
    lines = [("accuracy", ENSEMBLE, f"ensemble of {card['inference']['T']}" if random else "accuracy under PGD")]
    lines += [("per_draw", PER_DRAW, "one draw")] if random else []
    for key, look, _ in lines:
        y = [100 * point[key] for point in points]
        axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dash)
    worst = {key: card["robust"]["A_T"][key] for key in ("mean", "low", "high")}
    at = card["epsilon"]
    axes.plot([at, at], [100 * worst["low"], 100 * worst["high"]], color=WORST.colour, linewidth=1)
    axes.plot([at], [100 * worst["mean"]], color=WORST.colour, marker=WORST.marker)
    norm = r"$\ell_\infty$" if card["norm"] == "Linf" else r"$\ell_2$"
    axes.set(xlabel=f"perturbation bound ε ({norm}, pixel range [0, 1])", ylabel=style.ACCURACY, ylim=(-2, 102))
    handles = [handle(look, title) for _, look, title in lines]
    legend_below(figure, [*handles, handle(WORST, "worst of all attacks", linestyle="none")], 3)
    rows = [(title, point["epsilon"], 100 * point[key], "", "") for key, _, title in lines for point in points]
    rows.append(("worst of all attacks", at, *(100 * worst[key] for key in ("mean", "low", "high"))))
    attack = "EOT-PGD" if random else "PGD"
    return Figure(
        name="accuracy-epsilon",
        title="Accuracy against the perturbation bound",
        figure=figure,
        columns=("what", "epsilon", "accuracy", "low", "high"),
        rows=tuple(rows),
        caption=(
            f"Lines: under {attack} alone. The mark at ε = {bound(at)}: what is left when every image is attacked by "
            f"the worst of {len(card['attack']['attacks'])} attacks, with its 95 % interval over images."
        ),
    )


@styled
def worst_of_k(card: Card) -> Figure:
    """The share of images on which k draws in a row are right."""
    figure, (axes,) = panels(1, 1, style.ONE_COLUMN * 1.2, 2.9)
    rows: list[tuple[object, ...]] = []
    for name, title, look in (("clean", "clean images", ENSEMBLE), ("robust", "attacked images", WORST)):
        found = {int(k): value for k, value in card[name]["W"].items()}
        ks = sorted(found)
        axes.plot(ks, [100 * found[k]["mean"] for k in ks], color=look.colour, marker=look.marker)
        low, high = ([100 * found[k][end] for k in ks] for end in ("low", "high"))
        axes.fill_between(ks, low, high, color=look.colour, alpha=0.13, linewidth=0)
        rows += [(title, k, *(100 * found[k][end] for end in ("mean", "low", "high"))) for k in ks]
    axes.set_xscale("log")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set(xlabel="times the attacker may try, k", ylabel="all k answers right (%)", ylim=(-2, 102))
    legend_below(figure, [handle(ENSEMBLE, "clean images"), handle(WORST, "attacked images")], 2)
    return Figure(
        name="worst-of-k",
        title="The attacker who tries again",
        figure=figure,
        columns=("what", "k", "accuracy", "low", "high"),
        rows=tuple(rows),
        caption=(
            "One wrong answer among k draws is enough for an attacker who may ask again. The curve of clean images "
            "shows what is lost without any attack; the attack owns only what lies below it. Bands: 95 % intervals "
            "over images."
        ),
    )


@styled
def ladder(card: Card) -> Figure:
    """Accuracy by what the adversary knows of the noise."""
    rungs = ladder_rows(card)
    figure, (axes,) = panels(1, 1, style.ONE_COLUMN * 1.35, 0.9 + 0.32 * len(rungs))
    for place, (_, mean, low, high) in enumerate(rungs):
        axes.plot([low, high], [place, place], color=style.BLACK, linewidth=1)
        axes.plot([mean], [place], color=style.BLACK, marker="o")
    axes.set_yticks(range(len(rungs)), [title for title, *_ in rungs])
    axes.invert_yaxis()
    axes.set(xlabel="accuracy under attack (%)", xlim=(-2, 102))
    return Figure(
        name="ladder",
        title="What randomness buys",
        figure=figure,
        columns=("what the adversary knows", "accuracy", "low", "high"),
        rows=tuple(rungs),
        caption=(
            "From an adversary who knows the very draw that answers to one who knows only the law of the noise: the "
            "gap between the first rung and the last is what secrecy is worth. Known draws are attacked by APGD and by "
            "the images that the worst of all attacks on fresh draws made. Lines: 95 % intervals over images."
        ),
    )


def ladder_rows(card: Card) -> list[tuple[str, float, float, float]]:
    """(rung, accuracy, low, high) in percent, from the most that is known to the least; without noise last."""
    found = []
    for rung in card["ladder"]:
        known = rung["known"]
        title = "without noise" if not known else "the draw itself" if known == 1 else f"all {known} draws that answer"
        found.append((title, *(100 * value for value in (rung["attacked"], *rung["interval"]))))
    free = [row for row in found if row[0] == "without noise"]
    fresh = []
    for key, title in (("A1", "the law; one draw answers"), ("A_T", f"the law; {card['inference']['T']} draws answer")):
        value = card["robust"][key]
        fresh.append((title, 100 * value["mean"], 100 * value["low"], 100 * value["high"]))
    return [*(row for row in found if row not in free), *fresh, *free]
