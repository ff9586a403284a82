import base64
import io
import json
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graddiv import records
from graddiv.records import GradientsRecord
from graddiv.report import closeups, page
from graddiv.report.closeups import Grid
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.figures import accuracy, gradients
from graddiv.report.output import NOT_APPLICABLE, Table, legible
from graddiv.report.tables import accuracy_table, attack_table
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
    return {(epsilon, n): fake.grid(of, epsilon=epsilon, n=n) for epsilon, n in CHOICES}


def contents(of: Comparison, figures: bool = False) -> dict[str, Any]:
    """As a plan makes it: five tables of attacks, one of the supplement's, two figures."""
    found = grids(of)
    swept = fake.swept(of, "epsilon")
    drawn, lead = ([gradients.scatter(of)], accuracy.accuracy_epsilon(swept)) if figures else ([], None)
    tables = [accuracy_table(fake.at(of, modes="eot"))]
    of_attacks = {"comparison": of, "grids": list(found.values()), "default": found[0.2, 10]}
    return {**of_attacks, "tables": tables, "figures": drawn, "lead": lead}


@pytest.fixture(scope="module")
def grid(comparison: Comparison) -> Grid:
    return grids(comparison)[0.2, 10]


@pytest.fixture(scope="module")
def html(comparison: Comparison) -> str:
    return page.text_of(**contents(comparison, figures=True))


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
    chosen = [r for r in comparison.runs[0].attacks if (r.label, r.epsilon) == ("EOT-Square", 0.3)]
    found = records.accuracy(chosen)
    low, high = (f"{100 * bound:.1f}" for bound in found.interval)
    tips = [plain(unescape(tip)) for tip in re.findall(r'data-tip="([^"]*)"', html)]
    [tip] = [t for t in tips if t.startswith("Adv-BNN, EOT-Square") and f"interval {low} to {high}" in t][:1]
    assert f"{found.mean * fake.EXAMPLES:.4g} of {fake.EXAMPLES} right, mean of 2 repeats" in tip


@pytest.mark.slow
def test_a_column_of_several_trainings_is_that_of_its_method(comparison: Comparison) -> None:
    pair = comparison.runs
    trainings = comparison.of([run for each in pair for run in (each, fake.retrained(each, seed=1))])
    html = page.text_of(**contents(trainings))
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


def test_a_table_of_attacks_without_eot_has_no_n(comparison: Comparison) -> None:
    assert fake.grid(comparison, epsilon=0.2, modes="fixed").n == 0


@pytest.mark.slow
def test_odd_names_are_text(comparison: Comparison) -> None:
    odd = '<script>alert(1)</script> & "O\'Hara"'
    first, second = comparison.runs
    named = contents(fake.compared(first, replace(second, title=odd)))
    table = Table(name="odd", title=odd, columns=("a", "<b>"), rows=(("<i>x</i>", "1"),), caption="</table>")
    html = page.text_of(**named | {"tables": [table]})
    assert "<script>alert" not in html
    assert "<i>x" not in html
    assert unescape(html).count(odd) > 5
    assert Page(html).tables["odd"] == [["a", "<b>"], ["<i>x</i>", "1"]]
    assert html.count("<script>") == 2, "ours"


@pytest.mark.slow
def test_runs_that_are_in_no_table_of_attacks_take_no_room_there(comparison: Comparison, tmp_path: Path) -> None:
    shutil.copytree(comparison.runs[0].path, tmp_path / "other")
    other = ReportRun(tmp_path / "other", "Another training")
    html = page.text_of(**contents(comparison) | {"comparison": comparison.of([*comparison.runs, other])})
    legend = html[html.index('<p class="legend">') :].partition("</p>")[0]
    assert comparison.runs[0].title in legend
    assert other.title not in legend
    assert other.title in html
    assert f'viewBox="0 0 160 {10 + 6 * len(comparison.runs)}"' in html


@pytest.fixture
def bare(comparison: Comparison) -> dict[str, Any]:
    run = comparison.runs[0]
    return {"comparison": fake.compared(ReportRun(run.path, run.title)), "grids": [], "default": None}


def test_a_page_of_one_run_without_records(bare: dict[str, Any]) -> None:
    read = Page(page.text_of(**bare))
    assert "There is no verdict on GradDiv: that takes a method without it and with it." in read.text
    assert {"tables", "up-close", "figures", "checklist"}.isdisjoint(read.ids)


def test_a_pair_without_a_table_of_attacks_has_no_verdict_and_the_page_says_why(comparison: Comparison) -> None:
    text = Page(page.text_of(comparison, [], None)).text
    assert "There is no verdict on GradDiv: that takes a table of attacks, and this report has none." in text


@pytest.mark.slow
def test_deterministic_networks_and_many_runs(tmp_path: Path) -> None:
    many = fake.comparison(tmp_path, ("adv-train", "adv-bnn", "adv-bnn+graddiv"), (0.1, 0.3))
    read = Page(page.text_of(**contents(many)))
    rows = {row[0]: row for row in read.tables["attacks-eps0.2-n10"]}
    assert NOT_APPLICABLE in rows["EOT-PGD"]
    assert read.text.count("test examples of mnist-mini, at ε = 0.2") == 2, "a verdict for each lambda"


def test_examples_up_close(comparison: Comparison, grid: Grid, html: str) -> None:
    digits = closeups.close_ups(comparison, comparison.runs, [grid], grid, 10**6)
    assert len(digits) == 20
    record = grid.of(comparison.runs[1], "EOT-PGD")[0]
    _, of_runs = digits[4]["galleries"][0]
    shot = of_runs[1]["PGD"][2]
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
    comparison: Comparison, bare: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_figure = bare | {"figures": [gradients.scatter(comparison)]}
    sizes = {"svg": b"s" * (page.HEAVY + 1), "png": b"p" * 10}
    monkeypatch.setattr(page, "image", lambda drawing, form: sizes[form])
    assert "image/png" in page.text_of(**with_figure)
    sizes["svg"] = b"s"
    assert "image/png" not in page.text_of(**with_figure)


def test_recipe_cost_and_checklist(comparison: Comparison, read: Page) -> None:
    assert 'method = "adv-bnn+graddiv"' in read.text
    assert any(row[0] == "stages" and "lam 0.3" in row[2] for table in read.tables.values() for row in table)
    spent = sum(int(record.cost_forwards.sum()) for record in comparison.runs[1].attacks)
    assert any(row[0] == "Adv-BNN + GradDiv" and row[4] == f"{spent:,}".replace(",", "\u202f")
               for table in read.tables.values() for row in table)  # fmt: skip
    assert "Success grows with epsilon" in read.text
    assert "A finite set of attacks proves no robustness." in read.text


@pytest.mark.slow
def test_equal_records_give_equal_bytes(comparison: Comparison, html: str) -> None:
    assert page.text_of(**contents(comparison, figures=True)) == html


def test_values_of_all_kinds_are_legible() -> None:
    evidence = json.loads('{"a": 0.123456, "b": [1, 2.5], "c": true, "d": null, "e": {"x": 1e-7}}')
    assert legible(evidence) == f"a 0.1235, b 1, 2.5, c yes, d {NOT_APPLICABLE}, e x 1e-07"
