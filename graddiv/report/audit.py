"""The page of an audit, drawn from its card and images, and the board of several cards; their text is in templates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graddiv import store
from graddiv.report import style
from graddiv.report.closeups import png
from graddiv.report.output import Figure, Table, bound, caption, drawing, fill, percent, save
from graddiv.report.page import shown_figure, shown_table
from graddiv.report.style import Look, Sheet, log_ticks, percents, plot

PICTURES = 12  #: Images that are shown.
ENSEMBLE, PER_DRAW, WORST = Look(style.BLACK, "o"), Look(style.BLUE, "s", style.DASHED), Look(style.VERMILLION, "D")
INTERVAL = ("mean", "low", "high")
BOARD = "network, rank, norm and ε, lower bound %, ensemble %, per draw %, clean %, draws T, images, state"

Card = Mapping[str, Any]


class Pictures(NamedTuple):
    """The first images, clean and attacked, with their labels and what the network answers."""

    clean: np.ndarray
    attacked: np.ndarray
    labels: np.ndarray
    answers: Sequence[int]  #: on the clean images
    wrong: Sequence[int]  #: on the attacked ones, where they may be right all the same

    @property
    def shown(self) -> list[dict[str, Any]]:
        """What the page shows of each, if these are images that a browser can show."""
        if self.clean.ndim != 4 or self.clean.shape[1] not in (1, 3):
            return []
        images = [[png(image) for image in images] for images in (self.clean, self.attacked)]
        parts = zip(*images, self.labels.tolist(), self.answers, self.wrong, strict=True)
        return [dict(zip(("clean", "attacked", "label", "before", "after"), part, strict=True)) for part in parts]


def write_page(card: Card, pictures: Pictures, explained: Mapping[str, Mapping[str, str]], out: Path) -> Path:
    """Write report.html, and tables and figures beside it; `explained`: what there is to say of each check."""
    attacks, doubling = attack_table(card), doubling_table(card)
    with drawing():
        figures = [accuracy_epsilon(card), *([worst_of_k(card), ladder(card)] if card["randomness"]["random"] else [])]
    for what in (attacks, doubling, *figures):
        save(what, out)
    lead, *others = (shown_figure(figure) for figure in figures)
    return _write_page(
        out / "report.html",
        "audit.html.jinja",
        card["name"],
        card=card,
        lead=lead,
        figures=others,
        attacks={**shown_table(attacks), "marks": marks(_intervals(card))},
        doubling=shown_table(doubling),
        pictures=pictures.shown,
        indicators=[(item["check"], item) for item in card["indicators"]],
        explained=explained,
    )


def write_board(entries: Sequence[Mapping[str, Any]], directory: Path) -> Path:
    """Write board.html, and the table beside it, into a directory."""
    table = board_table(entries)
    save(table, directory)
    shown = {**shown_table(table), "marks": marks([[entry["robust"][end] for end in INTERVAL] for entry in entries])}
    title = "accuracy under attack"
    return _write_page(directory / "board.html", "board.html.jinja", title, entries=entries, shown=shown)


def _write_page(path: Path, template: str, title: str, **content: Any) -> Path:
    """Fill a template, whose layout shows a single method, and write the page."""
    html = fill(template, titles=[title], colours=[style.BLACK], square=[False], attacked=[0], **content)
    store.write(path, html.encode())
    return path


def marks(values: Sequence[Sequence[float]]) -> dict[int, list[dict[str, Any]]]:
    """The accuracies of a table as points with their intervals, by row."""
    points = [{name: 100 * value for name, value in zip(INTERVAL, found, strict=True)} for found in values]
    return {row: [{"run": 0, **point}] for row, point in enumerate(points)}


def _intervals(card: Card) -> list[list[float]]:
    """Accuracy and bounds: on clean images, under each attack, in total."""
    clean, robust = ([card[key]["A_T"][end] for end in INTERVAL] for key in ("clean", "robust"))
    return [clean, *([a["accuracy"], *a["interval"]] for a in card["attack"]["attacks"]), robust]


def attack_table(card: Card) -> Table:
    """Every attack: what it left, and on how many images it was the worst."""
    attacks, clean, robust = card["attack"]["attacks"], card["clean"], card["robust"]
    _, *left, total = (f"{percent(mean)} ({100 * low:.0f}–{100 * high:.0f})" for mean, low, high in _intervals(card))
    rows = [("clean images", percent(clean["A_T"]["mean"]), percent(clean["A1"]["mean"]), "", "", "", "")]
    for a, accuracy in zip(attacks, left, strict=True):
        restarts = f" × {a['restarts']}" if a.get("restarts", 1) > 1 else ""
        steps = f"{a.get('m', a.get('samples', ''))}{restarts}"
        n = str(a["n"]) if card["randomness"]["random"] else "–"
        rows.append((a["label"], accuracy, percent(a["per_draw"]), n, steps, str(a["worst_on"]), str(a["backwards"])))
    rows.append(("Total, scored on fresh draws", total, percent(robust["A1"]["mean"]), "", "", "", ""))
    least = min(range(len(attacks)), key=lambda i: attacks[i]["accuracy"]) + 1
    return Table(
        name="attacks",
        title=f"Accuracy (%) under every attack, ε = {bound(card['epsilon'])}",
        columns=("attack", "accuracy", "per draw", "draws n", "steps m", "worst on", "backward passes"),
        rows=tuple(rows),
        caption=caption("attacks", card),
        highlighted=frozenset({(least, 1)}),
    )


def doubling_table(card: Card) -> Table:
    """The gain of each doubling of the budget."""
    rows = []
    for d in card["sweep"]["doublings"]:
        what = f"look {d['look']}: {d['setting']} from {d['before']} to {d['after']}"
        rows.append((what, *(percent(d[key]) for key in ("accuracy_before", "accuracy_after", "gain", "bound"))))
    return Table(
        name="doubling",
        title="What a doubled budget gains",
        columns=("doubled", "accuracy before", "accuracy after", "gain, points", "upper bound of the gain"),
        rows=tuple(rows),
        caption=caption("doubling", card),
    )


def board_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Networks from the highest to the lowest lower bound."""
    rows = []
    for rank, entry in enumerate(entries, 1):
        card, robust = entry["card"], entry["robust"]
        state = card.get("verdict", "complete" if card["complete"] else "evidence insufficient")
        state = state if entry["audited"] else "unaudited"
        if card["external"] and robust != card["robust"]["A_T"]:
            least = min(card["external"], key=lambda found: found["A_T"]["low"])
            state += f"; lowered by {least['who'] or least['attack'] or 'others'}"
        accuracies = (robust["low"], robust["mean"], card["robust"]["A1"]["mean"], card["clean"]["A_T"]["mean"])
        radius = f"{card['norm']} {bound(card['epsilon'])}"
        sizes = str(card["inference"]["T"]), str(card["examples"])
        rows.append((card["name"], str(rank), radius, *(percent(share) for share in accuracies), *sizes, state))
    return Table(
        name="board",
        title="Networks by the lower bound of their accuracy under attack",
        columns=tuple(BOARD.split(", ")),
        rows=tuple(rows),
        caption=caption("board"),
    )


def accuracy_epsilon(card: Card) -> Figure:
    """Accuracy under EOT-PGD against epsilon, and under the worst of all attacks at the radius of the audit."""
    sheet = Sheet(1, 1, style.ONE_COLUMN * 1.35, 3.3)
    [axes], random, at = sheet.axes, card["randomness"]["random"], card["epsilon"]
    start = {"epsilon": 0.0, "accuracy": card["clean"]["A_T"]["mean"], "per_draw": card["clean"]["A1"]["mean"]}
    points = [start, *sorted(card["radii"], key=lambda point: point["epsilon"])]
    lines = [("accuracy", ENSEMBLE, f"ensemble of {card['inference']['T']}" if random else "accuracy under PGD")]
    lines += [("per_draw", PER_DRAW, "one draw")] if random else []
    for key, look, name in lines:
        plot(axes, look, [point["epsilon"] for point in points], [100 * point[key] for point in points])
        sheet.entry(look, name)
        sheet.rows += [(name, point["epsilon"], 100 * point[key], "", "") for point in points]
    mean, low, high = (100 * card["robust"]["A_T"][name] for name in INTERVAL)
    axes.plot([at, at], [low, high], color=WORST.colour, linewidth=1)
    axes.plot([at], [mean], color=WORST.colour, marker=WORST.marker)
    sheet.entry(WORST, "worst of all attacks", linestyle="none")
    sheet.rows.append(("worst of all attacks", at, mean, low, high))
    norm = r"$\ell_\infty$" if card["norm"] == "Linf" else r"$\ell_2$"
    percents(axes, f"perturbation bound ε ({norm}, pixel range [0, 1])")
    columns, title = ("what", "epsilon", "accuracy", "low", "high"), "Accuracy against the perturbation bound"
    return sheet.done(caption("radii", card), most=3, name="accuracy-epsilon", title=title, columns=columns)


def worst_of_k(card: Card) -> Figure:
    """The share of images on which k draws in a row are right."""
    sheet = Sheet(1, 1, style.ONE_COLUMN * 1.2, 2.9)
    [axes] = sheet.axes
    for name, title, look in (("clean", "clean images", ENSEMBLE), ("robust", "attacked images", WORST)):
        found = {int(k): [100 * value[end] for end in INTERVAL] for k, value in card[name]["W"].items()}
        ks = sorted(found)
        plot(axes, look, ks, *zip(*(found[k] for k in ks), strict=True))
        sheet.entry(look, title)
        sheet.rows += [(title, k, *found[k]) for k in ks]
    log_ticks(axes, ks)
    percents(axes, "times the attacker may try, k", "all k answers right (%)")
    columns = ("what", "k", "accuracy", "low", "high")
    return sheet.done(caption("worst-of-k"), name="worst-of-k", title="The attacker who tries again", columns=columns)


def ladder(card: Card) -> Figure:
    """Accuracy by what the adversary knows of the noise: the most first, without noise last."""
    rungs = [(r["known"], 100 * r["attacked"], *(100 * end for end in r["interval"])) for r in card["ladder"]]
    known = [("the draw itself" if k == 1 else f"all {k} draws that answer", *values) for k, *values in rungs if k]
    free = [("without noise", *values) for k, *values in rungs if not k]
    answers = {"A1": "the law; one draw answers", "A_T": f"the law; {card['inference']['T']} draws answer"}
    fresh = [(title, *(100 * card["robust"][key][end] for end in INTERVAL)) for key, title in answers.items()]
    rows = [*known, *fresh, *free]
    sheet = Sheet(1, 1, style.ONE_COLUMN * 1.35, 0.9 + 0.32 * len(rows))
    [axes], sheet.rows = sheet.axes, [*rows]
    for place, (_, mean, low, high) in enumerate(rows):
        axes.plot([low, high], [place, place], color=style.BLACK, linewidth=1)
        axes.plot([mean], [place], color=style.BLACK, marker="o")
    axes.set_yticks(range(len(rows)), [title for title, *_ in rows])
    axes.invert_yaxis()
    axes.set(xlabel="accuracy under attack (%)", xlim=(-2, 102))
    columns = ("what the adversary knows", "accuracy", "low", "high")
    return sheet.done(caption("ladder"), name="ladder", title="What randomness buys", columns=columns)
