"""The page of an audit: the same page as a reproduction's, drawn from a card, its records and the images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graddiv import store
from graddiv.records import AttackRecord
from graddiv.report.closeups import png
from graddiv.report.figures import audits
from graddiv.report.output import Figure, Table, save
from graddiv.report.page import colours, fill, shown_figure, shown_table
from graddiv.report.style import BLACK
from graddiv.report.texts import bound, percent

PICTURES = 12
"""Images that are shown."""
KNOWN_NORMS = {"Linf": "ℓ∞", "L2": "ℓ2"}


@dataclass(frozen=True, eq=False)
class AuditPage:
    """What the page shows."""

    card: Mapping[str, Any]
    clean: AttackRecord
    attacks: Sequence[AttackRecord]
    radii: Sequence[AttackRecord]
    x: np.ndarray
    x_adv: np.ndarray


def write_page(shown: AuditPage, out: Path) -> Path:
    """Write report.html, and tables and figures beside it."""
    tables, figures = [attack_table(shown.card), doubling_table(shown.card)], drawings(shown.card)
    made: list[Table | Figure] = [*tables, *figures]
    for what in made:
        save(what, out)
    path = out / "report.html"
    store.write(path, render(shown, tables, figures).encode())
    return path


def render(shown: AuditPage, tables: Sequence[Table], figures: Sequence[Figure]) -> str:
    """The page as text."""
    card = shown.card
    attacks = {**shown_table(tables[0]), "marks": marks(card), "n": 0}
    return fill(
        "audit.html.jinja",
        card=card,
        headline=headline(card),
        sentences=sentences(card),
        numbers=numbers(card),
        lead=shown_figure(figures[0]),
        figures=[shown_figure(figure) for figure in figures[1:]],
        attacks=attacks,
        doubling=shown_table(tables[1]),
        pictures=pictures(shown),
        facts=facts(card),
        caveats=caveats(card),
        norm=KNOWN_NORMS.get(card["norm"], card["norm"]),
        radius=bound(card["epsilon"]),
        titles=[card["name"]],
        colours=[colours(BLACK)],
        square=[False],
        attacked=[0],
    )


def drawings(card: Mapping[str, Any]) -> list[Figure]:
    """Accuracy against epsilon first; the rest where the network is random."""
    found = [audits.accuracy_epsilon(card)]
    if card["randomness"]["random"]:
        found += [audits.worst_of_k(card), audits.ladder(card)]
    return found


def headline(card: Mapping[str, Any]) -> str:
    """What is left, and whether it can be relied on."""
    left = percent(card["robust"]["A_T"]["mean"])
    norm = KNOWN_NORMS.get(card["norm"], card["norm"])
    said = f"{card['name']} answers {left} % of the attacked images rightly at ε = {bound(card['epsilon'])} ({norm})"
    return said if card["complete"] else f"At most: {said}; the evidence is not sufficient to say how much less"


def sentences(card: Mapping[str, Any]) -> list[str]:
    """The same in other numbers, and why it may not be relied on."""
    robust, T = card["robust"], card["inference"]["T"]
    found = [
        f"Every accuracy under attack is an upper bound, found by {len(card['attack']['attacks'])} attacks on "
        f"{card['examples']} images; a doubled budget gains at most "
        f"{100 * card['sweep']['upper_bound_gain']:.1f} points (95 % bound, tolerance "
        f"{100 * card['sweep']['tolerance']:.3g})."
    ]
    if card["randomness"]["random"]:
        oracle = robust["oracle"]
        found.append(
            f"An ensemble of {T} draws is right on {percent(robust['A_T']['mean'])} %, a single draw on "
            f"{percent(robust['A1']['mean'])} %"
            + (f"; an adversary who knows the draw leaves {percent(oracle)} %." if oracle is not None else ".")
        )
    return found


def numbers(card: Mapping[str, Any]) -> list[dict[str, str]]:
    """The three numbers, each for clean and for attacked images; one where the network is deterministic."""
    ways = [("A_T", f"The ensemble of {card['inference']['T']} draws answers")]
    if card["randomness"]["random"]:
        ways = [("A1", "One draw answers"), *ways, ("W_10", "Ten draws answer, and all must be right")]
    else:
        ways = [("A_T", "The network answers")]
    found = []
    for key, name in ways:
        clean, robust = card["clean"][key], card["robust"][key]
        if clean is None or robust is None:
            continue
        spread = f"; ± {100 * robust['spread']:.1f} over ensembles" if robust["spread"] else ""
        exact = ", exact over the noise" if card["robust"]["exact"] and key != "A_T" else ""
        found.append(
            {
                "name": name,
                "before": f"{percent(clean['mean'])} %",
                "after": f"{percent(robust['mean'])} %",
                "sure": f"attacked: 95 % interval over images {percent(robust['low'])} to {percent(robust['high'])}"
                f"{spread}{exact}",
            }
        )
    return found


def attack_table(card: Mapping[str, Any]) -> Table:
    """Every attack: what it left, and on how many images it was the worst."""
    attacks = card["attack"]["attacks"]
    rows = [
        ("clean images", percent(card["clean"]["A_T"]["mean"]), percent(card["clean"]["A1"]["mean"]), "", "", "", "")
    ]
    for a in attacks:
        restarts = f" × {a['restarts']}" if a.get("restarts", 1) > 1 else ""
        steps = f"{a.get('m', a.get('samples', ''))}{restarts}"
        left = f"{percent(a['accuracy'])} ({100 * a['interval'][0]:.0f}–{100 * a['interval'][1]:.0f})"
        n = str(a["n"]) if a["mode"] == "eot" else "–"
        rows.append((a["label"], left, percent(a["per_draw"]), n, steps, str(a["worst_on"]), str(a["backwards"])))
    robust = card["robust"]
    total = f"{percent(robust['A_T']['mean'])} ({100 * robust['A_T']['low']:.0f}–{100 * robust['A_T']['high']:.0f})"
    rows.append(("Total, scored on fresh draws", total, percent(robust["A1"]["mean"]), "", "", "", ""))
    least = min(range(len(attacks)), key=lambda i: attacks[i]["accuracy"]) + 1
    return Table(
        name="attacks",
        title=f"Accuracy (%) under every attack, ε = {bound(card['epsilon'])}",
        columns=("attack", "accuracy", "per draw", "draws n", "steps m", "worst on", "backward passes"),
        rows=tuple(rows),
        caption=(
            f"Accuracy of ensembles of {card['inference']['T']}, with the 95 % interval; per draw: of single draws. "
            "Worst on: images for which no other attack did worse. Total: each image attacked by the worst of all, "
            "chosen on other draws than those that score it."
        ),
        highlighted=frozenset({(least, 1)}),
    )


def marks(card: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """The accuracies of the table as points with their intervals."""
    robust, clean = card["robust"]["A_T"], card["clean"]["A_T"]
    values = [
        (clean["mean"], clean["low"], clean["high"]),
        *((a["accuracy"], *a["interval"]) for a in card["attack"]["attacks"]),
        (robust["mean"], robust["low"], robust["high"]),
    ]
    return {
        row: [{"run": 0, **{name: 100 * value for name, value in zip(("mean", "low", "high"), found, strict=True)}}]
        for row, found in enumerate(values)
    }


def doubling_table(card: Mapping[str, Any]) -> Table:
    """What each doubling of the budget gained."""
    rows = [
        (
            f"look {d['look']}: {d['setting']} from {d['before']} to {d['after']}",
            percent(d["accuracy_before"]), percent(d["accuracy_after"]), f"{100 * d['gain']:.1f}",
            f"{100 * d['bound']:.1f}",
        )
        for d in card["sweep"]["doublings"]
    ]  # fmt: skip
    return Table(
        name="doubling",
        title="What a doubled budget gains",
        columns=("doubled", "accuracy before", "accuracy after", "gain, points", "upper bound of the gain"),
        rows=tuple(rows),
        caption=(
            "n: draws at each step; m: steps. The audit stops doubling once every upper bound lies below the tolerance "
            f"of {100 * card['sweep']['tolerance']:.3g} points; that no gain was found would not be enough."
        ),
    )


def pictures(shown: AuditPage) -> list[dict[str, Any]]:
    """The first images as they were and as the worst attack left them."""
    if shown.x.ndim != 4 or shown.x.shape[1] not in (1, 3):
        return []
    return [
        {"clean": png(shown.x[i]), "attacked": png(shown.x_adv[i]), "label": int(shown.clean.labels[i]), "id": i}
        for i in range(min(PICTURES, len(shown.x)))
    ]


def facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is needed to make the numbers again."""
    attack, concentration = card["attack"], card["concentration"]
    found = [
        ("Budget", f"{attack['budget']}: n = {attack['n']}, m = {attack['m']}, suites {', '.join(attack['suites'])}"),
        ("Passes", f"{attack['forwards']:,} forward, {attack['backwards']:,} backward, of a batch by one draw"),
        ("Noise", f"{card['randomness']['law']}, {card['randomness']['granularity']}"),
        ("Seed", str(card["seed"])),
        ("Network, sha256", card["model_sha256"]),
        ("Examples, sha256", card["data_sha256"]),
        ("Adversarial examples, sha256", card["x_adv_sha256"]),
        ("Made by", f"graddiv {card['graddiv']}"),
    ]
    if concentration["q"] is not None:
        said = (
            f"MRL {concentration['rho']:.2f} (the length of the mean of unit gradients, freed of the bias of few "
            "draws); "
            f"{attack['n']} draws then see the mean gradient with cosine {concentration['cos_n']:.2f}"
        )
        found.insert(3, ("Gradients of draws", said))
    return found


def caveats(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the page does not show."""
    return [
        (
            "A finite set of attacks proves no robustness.",
            "Every accuracy under attack is an upper bound: anyone may lower it with better adversarial examples.",
        ),
        (
            "What is known to the adversary.",
            "Attacks know the network and the law of its noise, not the draws that score them; the ladder shows what "
            "is left when draws are known.",
        ),
        (
            "One radius, one norm, these images.",
            f"{card['examples']} images are a sample; intervals are over such samples, not over other data.",
        ),
    ]
