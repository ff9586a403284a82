import base64
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from graddiv import records
from graddiv.records import ConcentrationRecord, GradientsRecord
from graddiv.report import closeups, page
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.figures import FIGURES
from graddiv.report.grids import Grid, grid_of
from graddiv.report.output import NOT_APPLICABLE, Table
from graddiv.report.page import Contents
from graddiv.report.tables import accuracy_table, attack_table
from graddiv.report.texts import legible
from graddiv.report.verdict import Paired, crossing, headline, verdict
from tests.report import fake


class Page(HTMLParser):
    """Headings, ids, the rows of each table by its id, what is fetched, and the text of the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.images_without_text = 0
        self.shown_tables: list[str] = []
        self.text = ""
        self._hidden: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [given[name] or "" for name in ("src", "href", "action", "srcset") if name in given]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.images_without_text += tag == "img" and not given.get("alt")
        if tag in ("div", "span", "section"):
            self._open.append(tag)
            self._hidden.append("hidden" if "hidden" in given else "")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "table":
            self._table = given.get("id") or f"table {len(self.tables)}"
            self.tables[self._table] = []
            if not any(self._hidden):
                self.shown_tables.append(self._table)
        if tag == "tr":
            self.tables[self._table].append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append("")
            self._open.append(tag)
            self._hidden.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
            self._hidden.pop()

    def handle_data(self, data: str) -> None:
        data = plain(data)
        self.text += data
        if any(tag in ("td", "th") for tag in self._open):
            self.tables[self._table][-1][-1] += data.strip()


def plain(text: str) -> str:
    """As tables and captions have it."""
    return text.replace("\u00a0", " ").replace("EOT¹", "EOT^1")


CHOICES = ((0.1, 10), (0.2, 5), (0.2, 10), (0.2, 20), (0.3, 10))
"""Radius and n of the tables of attacks on the page."""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return fake.comparison(tmp_path_factory.mktemp("runs"))


def grids(of: Comparison) -> dict[tuple[float, int], Grid]:
    return {(epsilon, n): grid_of(fake.at(of, epsilon=epsilon, n=n)) for epsilon, n in CHOICES}


def contents(of: Comparison, figures: bool = False) -> Contents:
    """As a plan makes it: five tables of attacks, one of the supplement's, two figures."""
    found = grids(of)
    swept = fake.swept(of, "epsilon")
    drawn, lead = ([FIGURES["scatter"](of)], FIGURES["accuracy-epsilon"](swept)) if figures else ([], None)
    return Contents(of, list(found.values()), found[0.2, 10], [accuracy_table(fake.at(of, modes="eot"))], drawn, lead)


@pytest.fixture(scope="module")
def grid(comparison: Comparison) -> Grid:
    return grids(comparison)[0.2, 10]


@pytest.fixture(scope="module")
def html(comparison: Comparison) -> str:
    return page.render(contents(comparison, figures=True))


@pytest.fixture(scope="module")
def read(html: str) -> Page:
    return Page(html)


def test_the_sections_stand_in_order_and_headings_skip_no_level(read: Page) -> None:
    sections = ["verdict", "tables", "up-close", "figures", "checklist", "recipe", "cost", "caveats"]
    assert [name for name in read.ids if name in sections] == sections
    assert read.headings[0] == 1
    assert read.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(read.headings, read.headings[1:], strict=False))
    assert len(read.ids) == len(set(read.ids))
    assert read.images_without_text == 0


def test_nothing_is_fetched_and_the_page_can_be_mailed(html: str, read: Page) -> None:
    assert all(address.startswith(("data:", "#")) or address.endswith(".csv") for address in read.addresses)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|https?://", html)
    assert len(html.encode()) < page.SIZE


def test_every_table_equals_its_csv(comparison: Comparison, read: Page) -> None:
    for epsilon, n in CHOICES:
        table = attack_table(fake.at(comparison, epsilon=epsilon, n=n))
        shown = read.tables[f"{table.name}-n{n}"]
        assert [tuple(row[: len(table.columns)]) for row in shown] == [table.columns, *table.rows]
    table = accuracy_table(fake.at(comparison, modes="eot"))
    assert [tuple(row) for row in read.tables[table.name]] == [table.columns, *table.rows]


def test_without_scripts_one_choice_is_shown(read: Page) -> None:
    choices = [name for name in read.shown_tables if name.startswith("attacks-eps")]
    assert choices == ["attacks-eps0.2-n10"], "the headline of the plan"


def test_the_numbers_behind_a_cell(comparison: Comparison, html: str) -> None:
    chosen = comparison.runs[0].attacked(label="EOT-Square", epsilon=0.3)
    found = records.accuracy(chosen)
    low, high = (f"{100 * bound:.1f}" for bound in found.interval)
    tips = [plain(unescape(tip)) for tip in re.findall(r'data-tip="([^"]*)"', html)]
    [tip] = [t for t in tips if t.startswith("Adv-BNN, EOT-Square") and f"interval {low} to {high}" in t][:1]
    assert f"{found.mean * fake.EXAMPLES:.4g} of {fake.EXAMPLES} right, mean of 2 repeats" in tip


def test_a_column_of_several_trainings_is_that_of_its_method(comparison: Comparison) -> None:
    pair = comparison.runs
    trainings = comparison.of([run for each in pair for run in (each, fake.retrained(each, seed=1))])
    html = page.render(contents(trainings))
    rows = re.findall(r"<tr>\s*<th scope=\"row\">EOT-PGD</th>.*?</tr>", html, re.DOTALL)
    rows = [row for row in rows if "data-tip" in row]
    for row in rows:
        tips = [plain(unescape(tip)).splitlines() for tip in re.findall(r'data-tip="([^"]*)"', row)]
        assert [tip[0] for tip in tips] == ["Adv-BNN, EOT-PGD", "Adv-BNN + GradDiv, EOT-PGD"]
        assert all("mean of 2 trainings" in tip[1] for tip in tips)
        assert re.findall(r'<(circle|rect) class="run(\d)"', row) == [("circle", "0"), ("rect", "2")]
    assert len(rows) == len(CHOICES)
    legend = html[html.index('<p class="legend">') :].partition("</p>")[0]
    assert [legend.count(f"</svg> {run.title}</span>") for run in pair] == [1, 1]
    assert 'viewBox="0 0 160 22"' in html
    assert "Adv-BNN + GradDiv, seed 1: " in html, "the verdict on it"
    assert "<span>Adv-BNN, seed 1</span>" in html, "its checklist"


def test_the_verdict_is_made_of_the_records(comparison: Comparison, grid: Grid) -> None:
    assert (grid.epsilon, grid.n) == (0.2, 10)
    said = verdict(*comparison.runs, grid)
    in_table = {row[0]: row[1:] for row in attack_table(grid.comparison).rows}["Total, cross-fitted"]
    robust, _, rho = said.changes
    shown = robust.before.removesuffix(" %"), robust.after.removesuffix(" %")
    assert shown[0] == in_table[0].split()[0]
    assert shown[1] == in_table[2].split()[0]
    assert robust.before in said.sentences[0]
    for run, told in zip(comparison.runs, (rho.before, rho.after), strict=True):
        measured = run.measured(ConcentrationRecord)
        assert measured is not None
        assert told == f"{np.sqrt(np.nanmean(measured.mean_cosine)):.2f}"
    assert "39 of 39" in rho.sure, "the example without gradients does not count"


def paired(won: int, lost: int, same: int = 100) -> Paired:
    before = np.repeat([0.0, 1.0, 1.0], [won, lost, same])
    after = np.repeat([1.0, 0.0, 1.0], [won, lost, same])
    return Paired(before, after)


@pytest.mark.parametrize(
    ("rhos", "robust", "words"),
    [
        (
            (0.8, 0.3),
            paired(20, 2),
            "more than halves the concentration of the gradients, and robust accuracy rises by",
        ),
        ((0.8, 0.6), paired(2, 20), "spreads the gradients, but robust accuracy falls by 14.8 points"),
        ((0.8, 0.3), paired(3, 2), "but robust accuracy moves by +1.0 points, which chance can explain"),
        ((0.8, 0.3), paired(0, 0), "but robust accuracy moves by +0.0 points, which chance can explain"),
        (
            (0.5, 0.5),
            paired(20, 2),
            "leaves the gradients about as concentrated as they were, but robust accuracy rises",
        ),
        ((0.5, 0.9), paired(2, 20), "With GradDiv the gradients are more concentrated, and robust accuracy falls"),
        ((None, None), paired(2, 20), "With GradDiv, robust accuracy falls by 14.8 points"),
        ((0.8, 0.3), None, "no attack was run on both"),
        ((None, 0.3), None, "Nothing was measured on both"),
    ],
)
def test_the_headline_follows_from_the_numbers(
    rhos: tuple[float | None, float | None], robust: Paired | None, words: str
) -> None:
    assert words in headline(rhos, robust)


def test_an_example_counts_once_however_many_repeats() -> None:
    found = Paired(np.array([0.5, 1.0, 0.0]), np.array([1.0, 0.5, 0.0]))
    assert found.flips[:2] == (1, 1)


def test_only_shared_examples_are_paired(comparison: Comparison) -> None:
    first, second = comparison.runs
    moved = replace(second, attacks=tuple(replace(r, ids=r.ids + 30) for r in second.attacks))
    shifted = grids(fake.compared(first, moved))[0.2, 10]
    assert "On the same 10 test examples" in verdict(first, moved, shifted).sentences[0]


def test_a_table_of_attacks_without_eot_has_no_n(comparison: Comparison) -> None:
    assert grid_of(fake.at(comparison, epsilon=0.2, modes="fixed")).n == 0


def test_odd_names_are_text(comparison: Comparison) -> None:
    odd = '<script>alert(1)</script> & "O\'Hara"'
    first, second = comparison.runs
    named = contents(fake.compared(first, replace(second, title=odd)))
    table = Table("odd", odd, ("a", "<b>"), (("<i>x</i>", "1"),), "</table>")
    html = page.render(replace(named, tables=[table]))
    assert "<script>alert" not in html
    assert "<i>x" not in html
    assert unescape(html).count(odd) > 5
    assert Page(html).tables["odd"] == [["a", "<b>"], ["<i>x</i>", "1"]]
    assert html.count("<script>") == 2, "ours"


def test_runs_that_are_in_no_table_of_attacks_take_no_room_there(comparison: Comparison, tmp_path: Path) -> None:
    shutil.copytree(comparison.runs[0].path, tmp_path / "other")
    other = ReportRun(tmp_path / "other", "Another training")
    html = page.render(replace(contents(comparison), comparison=comparison.of([*comparison.runs, other])))
    legend = html[html.index('<p class="legend">') :].partition("</p>")[0]
    assert comparison.runs[0].title in legend
    assert other.title not in legend
    assert other.title in html
    assert f'viewBox="0 0 160 {10 + 6 * len(comparison.runs)}"' in html


@pytest.fixture
def bare(comparison: Comparison) -> Contents:
    run = comparison.runs[0]
    return Contents(fake.compared(ReportRun(run.path, run.title)), [], None)


def test_a_page_of_one_run_without_records(bare: Contents) -> None:
    read = Page(page.render(bare))
    assert "There is no verdict on GradDiv: that takes a method without it and with it." in read.text
    assert {"tables", "up-close", "figures", "checklist"}.isdisjoint(read.ids)


def test_a_pair_without_a_table_of_attacks_has_no_verdict_and_the_page_says_why(comparison: Comparison) -> None:
    text = Page(page.render(Contents(comparison, [], None))).text
    assert "There is no verdict on GradDiv: that takes a table of attacks, and this report has none." in text


@pytest.mark.slow
def test_deterministic_networks_and_many_runs(tmp_path: Path) -> None:
    many = fake.comparison(tmp_path, ("adv-train", "adv-bnn", "adv-bnn+graddiv"), (0.1, 0.3))
    read = Page(page.render(contents(many)))
    rows = {row[0]: row for row in read.tables["attacks-eps0.2-n10"]}
    assert NOT_APPLICABLE in rows["EOT-PGD"]
    assert read.text.count("test examples of mnist-mini, at ε = 0.2") == 2, "a verdict for each lambda"


def test_examples_up_close(comparison: Comparison, grid: Grid, html: str) -> None:
    digits = closeups.close_ups(comparison, comparison.runs, [grid], grid, 10**6)
    assert len(digits) == 20
    record = grid.of(comparison.runs[1], "EOT-PGD")[0]
    [row] = [row for row in digits[4]["galleries"][0]["runs"][1] if row["name"] == "PGD"]
    shot = row["shots"][2]
    assert shot["models"] == record.right[4].sum()
    assert shot["right"] == record.correct[4]
    assert digits[3]["scatter"]
    assert not digits[4]["scatter"], "gradients are kept of the first few"
    assert f"{shot['models']}/20" in html
    few = closeups.close_ups(comparison, comparison.runs, [grid], grid, 50_000)
    assert 1 <= len(few) < 20, "as many as there is room for"


def test_the_mean_gradients_lie_in_the_plane(comparison: Comparison) -> None:
    for cloud, run in zip(closeups.scatter(comparison, comparison.runs, 0), comparison.runs, strict=True):
        record = run.measured(GradientsRecord)
        assert record is not None
        mean = record.gradients[0].astype(np.float64).mean(0)
        assert np.linalg.norm(cloud["mean"]) == pytest.approx(np.linalg.norm(mean), abs=2e-3)
        assert np.mean(cloud["points"], axis=0) == pytest.approx(cloud["mean"], abs=2e-3)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_the_images(channels: int) -> None:
    import matplotlib.image

    pixels = np.random.default_rng(0).random((channels, 5, 7))
    kind, content = closeups.png(pixels).split(",")
    assert kind == "data:image/png;base64"
    read = matplotlib.image.imread(io.BytesIO(base64.b64decode(content)), format="png")
    assert np.moveaxis(read.reshape(5, 7, channels), -1, 0) == pytest.approx(pixels, abs=0.51 / 255)


def test_a_heavy_figure_becomes_a_picture(
    comparison: Comparison, bare: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_figure = replace(bare, figures=[FIGURES["scatter"](comparison)])
    sizes = {"svg": b"s" * (page.HEAVY + 1), "png": b"p" * 10}
    monkeypatch.setattr(page, "image", lambda drawing, form: sizes[form])
    assert "image/png" in page.render(with_figure)
    sizes["svg"] = b"s"
    assert "image/png" not in page.render(with_figure)


def test_recipe_cost_and_checklist(comparison: Comparison, read: Page) -> None:
    assert 'method = "adv-bnn+graddiv"' in read.text
    assert any(row[0] == "stages" and "lam 0.3" in row[2] for table in read.tables.values() for row in table)
    spent = sum(int(record.cost_forwards.sum()) for record in comparison.runs[1].attacks)
    assert any(row[0] == "Adv-BNN + GradDiv" and row[4] == f"{spent:,}".replace(",", "\u202f")
               for table in read.tables.values() for row in table)  # fmt: skip
    assert "Success grows with epsilon" in read.text
    assert "A finite set of attacks proves no robustness." in read.text


@pytest.mark.slow
def test_equal_records_give_equal_bytes(comparison: Comparison, html: str, tmp_path: Path) -> None:
    again = page.write(contents(comparison, figures=True), tmp_path)
    assert again.name == "report.html"
    assert again.read_text() == html


def test_values_of_all_kinds_are_legible() -> None:
    evidence = json.loads('{"a": 0.123456, "b": [1, 2.5], "c": true, "d": null, "e": {"x": 1e-7}}')
    assert legible(evidence) == f"a 0.1235, b 1, 2.5, c yes, d {NOT_APPLICABLE}, e x 1e-07"


def test_no_torch() -> None:
    code = "import sys, graddiv.report.page; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_the_crossing_is_told_by_the_curves(comparison: Comparison) -> None:
    """At the radius of training, 0.2, and beyond it, 0.3: from the records, in points."""
    curve = comparison.only(lambda run, r: (r.label, r.n, r.m) == ("EOT-PGD", 10, 20))
    found = crossing(*([run] for run in curve.runs), 0.2)
    assert found is not None
    for epsilon, clause in zip((0.2, 0.3), found.headline.split(";"), strict=True):
        before, after = (records.accuracy(run.attacked(epsilon=epsilon)).mean for run in curve.runs)
        assert f"{epsilon}: {100 * before:.1f} → {100 * after:.1f} %" in found.sentence
        assert f"{abs(100 * (after - before)):.1f} points" in clause
    assert found.headline.startswith("At the radius of training GradDiv ")
    assert "at 1.50 times it" in found.headline
    assert crossing(*([run] for run in curve.runs), 0.3) is None, "nothing beyond it"
    others_too = comparison.only(lambda run, r: r.n == 10 and r.m in (1, 20))
    assert {r.label for r in others_too.runs[0].attacks} > {"EOT-PGD"}
    assert crossing(*([run] for run in others_too.runs), 0.2) == found, "other attacks have no say in it"
    assert found.sentence == crossing(*([run, run] for run in curve.runs), 0.2).sentence.replace(  # type: ignore[union-attr]
        ", means over 2 trainings", ""
    )
