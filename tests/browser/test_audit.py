"""The page of an audit in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graddiv import audit
from graddiv.evaluation.card import board
from tests.audit.planted import BUDGET, Linear, Noisy, examples, margin_radii
from tests.browser.common import CONTRAST
from tests.browser.conftest import Browser
from tests.helpers import no_type_checks

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audits") / "noisy"
    x, y = examples()
    with no_type_checks():
        radius = float(margin_radii(x, y).median())
        audit(Noisy(Linear()), x, y, epsilon=radius, budget=BUDGET, n_ensemble=5, out=out)
    return out


@pytest.fixture
def page(driver: Any, audited: Path) -> Iterator[Browser]:
    found = Browser(driver, (audited / "report.html").as_uri())
    found.open()
    yield found
    assert not driver.get_log("browser")
    assert {address for address in found.requests() if not address.startswith("data:")} <= {found.address}


def test_everything_is_there(page: Browser) -> None:
    assert [len(page.all(name)) for name in ("h1", ".changes li", "main > section")] == [1, 3, 8]
    assert all(page.run("return [...document.images].map(image => image.complete && image.naturalWidth > 0)"))
    for link in page.all("nav a"):
        assert page.all(link.get_dom_attribute("href"))
    first = page.run("return document.querySelector('figure').id")
    assert first == "accuracy-epsilon", "the first picture"
    assert len(page.all(".checklist .verdict-word")) > 10
    folded = page.all("details.passed")
    assert not [item for item in page.shown(".checklist .verdict-word") if "Pass" in item.text], "they are folded"
    counts = [part.find_element("css selector", "summary").text.split() for part in folded]
    assert all(words[1:2] + words[3:] == ["of", "checks", "passed"] for words in counts)
    assert page.all(".strip .right")


def test_no_screen_scrolls_sideways(page: Browser) -> None:
    for width in (1280, 768, 400, 320):
        page.resize(width)
        for unfolded in ("false", "true"):
            page.run(f"document.querySelectorAll('details').forEach(part => part.open = {unfolded})")
            assert page.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_figures_follow_the_theme(page: Browser, scheme: str) -> None:
    page.emulate(scheme)
    places = ("h1", ".lead", ".sure", ".caption", "nav a", "summary", "td", "td.decides", ".verdict-word", ".top")
    found = {place: page.run(CONTRAST, page.all(place)[0]) for place in places}
    assert not {place: ratio for place, ratio in found.items() if ratio < 4.5}
    filtered = page.run("return getComputedStyle(document.querySelector('.card img')).filter")
    assert (filtered != "none") == (scheme == "dark")
    if scheme == "dark":
        page.emulate("dark", media="print")
        assert page.run("return getComputedStyle(document.querySelector('.card img')).filter") == "none"


def test_the_table_of_attacks_is_sorted_and_its_totals_stay(page: Browser) -> None:
    last = page.all("#attacks tfoot tr")[-1].text
    page.press(page.all("#attacks thead th")[1].find_element("css selector", "button"), "\n")
    cells = page.run("return [...document.querySelectorAll('#attacks tbody tr')].map(row => row.cells[1].textContent)")
    numbers = [float(text.split()[0]) for text in cells]
    assert numbers == sorted(numbers)
    assert page.all("#attacks tfoot tr")[-1].text == last


def test_the_board(driver: Any, audited: Path) -> None:
    found = Browser(driver, board(audited.parent).as_uri())
    found.open(width=400)
    assert found.run("return document.documentElement.scrollWidth") <= 400
    assert len(found.shown("#board tbody tr")) == 1
    link = found.all("#board-section li a")[0].get_dom_attribute("href")
    assert (audited.parent / link).exists()
    assert not driver.get_log("browser")
    assert found.requests() == [found.address]
