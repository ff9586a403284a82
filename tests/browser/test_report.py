"""The report in a real browser."""

import re
from typing import Any

import pytest

from tests.browser.common import CONTRAST
from tests.browser.conftest import Browser

pytestmark = pytest.mark.browser

DEFAULT = "attacks-eps0.2-n10"


def column(browser: Browser, table: str, place: int) -> list[str]:
    return [row.text for row in browser.all(f"#{selector(table)} tbody tr > :nth-child({place + 1})")]


def selector(name: str) -> str:
    return name.replace(".", "\\.")


def head(browser: Browser, table: str, place: int) -> Any:
    return browser.all(f"#{selector(table)} thead th")[place]


def tables(browser: Browser) -> list[str]:
    return [table.get_attribute("id") for table in browser.shown(".choice table")]


def test_everything_is_there(browser: Browser) -> None:
    assert [len(browser.all(name)) for name in ("h1", "main > section", ".changes li")] == [1, 8, 3]
    assert tables(browser) == [DEFAULT]
    assert all(browser.run("return [...document.images].map(image => image.complete && image.naturalWidth > 0)"))
    for link in browser.all("nav a"):
        assert browser.all(link.get_dom_attribute("href"))


def test_sorting_with_the_mouse_and_back(browser: Browser) -> None:
    before, totals = column(browser, DEFAULT, 1), [row.text for row in browser.all(f"#{selector(DEFAULT)} tfoot tr")]
    orders = []
    for expected in ("ascending", "descending", "none"):
        button = head(browser, DEFAULT, 1).find_element("css selector", "button")
        browser.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
        button.click()
        assert head(browser, DEFAULT, 1).get_attribute("aria-sort") == expected
        orders.append([float(text.split()[0]) for text in column(browser, DEFAULT, 1)])
    assert orders[0] == sorted(orders[0])
    assert orders[1] == sorted(orders[0], reverse=True)
    assert column(browser, DEFAULT, 1) == before
    assert [row.text for row in browser.all(f"#{selector(DEFAULT)} tfoot tr")] == totals


def test_sorting_with_the_keyboard_and_cells_without_a_number(browser: Browser) -> None:
    browser.press(head(browser, DEFAULT, 2).find_element("css selector", "button"), "\n")
    found = column(browser, DEFAULT, 2)
    numbers = [float(text) for text in found if re.match(r"\d", text)]
    assert numbers == sorted(numbers)
    assert all(re.match(r"\d", text) for text in found[: len(numbers)]), "those without stand below"
    browser.press(head(browser, DEFAULT, 0).find_element("css selector", "button"), " ")
    assert column(browser, DEFAULT, 0) == sorted(column(browser, DEFAULT, 0), key=str.lower)
    assert head(browser, DEFAULT, 2).get_attribute("aria-sort") == "none"


def test_the_table_follows_epsilon_and_n(browser: Browser) -> None:
    browser.choose("n", "20")
    assert tables(browser) == ["attacks-eps0.2-n20"]
    browser.choose("epsilon", "0.3")
    assert tables(browser) == ["attacks-eps0.3-n10"], "the only n that was run there"
    disabled = [box.get_attribute("value") for box in browser.all("[data-control='n'] input") if not box.is_enabled()]
    assert disabled == ["5", "20"]
    browser.choose("epsilon", "0.2")
    assert tables(browser) == ["attacks-eps0.2-n20"], "the n chosen before"
    browser.press(browser.all("[data-control='n'] input:checked")[0], "\ue012")  # the left arrow
    assert tables(browser) == [DEFAULT]


def test_pick_a_digit(browser: Browser) -> None:
    assert [digit.get_attribute("data-digit") for digit in browser.shown(".digit")] == ["0"]
    browser.choose("digit", "3")
    [digit] = browser.shown(".digit")
    assert digit.get_attribute("data-digit") == "3"
    assert len(digit.find_elements("css selector", ".scatter .points > *")) == 2 * 30
    assert len(browser.shown(".digit .gallery")) == 2
    browser.choose("epsilon", "0.1")
    assert all("0.1" in title.text for title in browser.shown(".digit .gallery h3"))
    boxes = browser.all("[data-control='epsilon'] input:checked")
    assert [box.get_attribute("value") for box in boxes] == ["0.1", "0.1"], "one choice for tables and pictures"
    browser.choose("digit", "9")
    assert "were not kept" in browser.shown(".digit .scatter")[0].text


def test_values_on_hover_and_with_the_keys(browser: Browser) -> None:
    from selenium.webdriver import ActionChains

    cells = browser.all(f"#{selector(DEFAULT)} [data-tip]")
    assert not browser.shown("#tip")
    browser.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", cells[0])
    ActionChains(browser.driver).move_to_element(cells[0]).perform()
    [tip] = browser.shown("#tip")
    assert "of 40 right" in tip.text
    browser.press(cells[0], "\ue015")  # the down arrow
    assert "FGSM" in tip.text
    assert browser.run("return document.activeElement.dataset.tip") == cells[2].get_attribute("data-tip")
    browser.press(cells[2], "\ue00c")  # Escape
    assert not browser.shown("#tip")


def test_no_screen_scrolls_sideways(browser: Browser) -> None:
    for width in (1280, 768, 390, 320):
        browser.resize(width)
        for unfolded in ("false", "true"):
            browser.run(f"document.querySelectorAll('details').forEach(part => part.open = {unfolded})")
            assert browser.run("return document.documentElement.scrollWidth") <= width
    box = browser.shown(".choice .scroll")[0]
    assert browser.run("return arguments[0].scrollWidth > arguments[0].clientWidth", box), "the table does, in its box"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, scheme: str) -> None:
    browser.emulate(scheme)
    places = (
        *("h1", ".lead", ".sure", ".caption", "nav a", "summary", ".choice th", ".choice td", ".choice thead td"),
        *(
            "td.decides",
            "td.paper",
            ".right",
            ".wrong",
            ".legend",
            ".control span",
            ".control input:checked + span",
            ".top",
        ),
    )
    found = {place: browser.run(CONTRAST, browser.all(place)[0]) for place in places}
    assert not {place: ratio for place, ratio in found.items() if ratio < 4.5}


def test_light_and_dark_can_be_chosen(browser: Browser) -> None:
    def background() -> str:
        return str(browser.run("return getComputedStyle(document.body).backgroundColor"))

    light = background()
    button = browser.all("button.theme")[0]
    button.click()
    dark = background()
    assert dark != light
    browser.open()
    assert background() == dark, "the choice is kept"
    button = browser.all("button.theme")[0]
    button.click()
    assert background() == light
    browser.emulate("dark")
    assert background() == light, "chosen, whatever the system prefers"
    button.click()
    assert background() == dark, "as the system prefers"


def test_without_scripts(browser: Browser) -> None:
    browser.open(scripts=False)
    assert tables(browser) == [DEFAULT]
    assert len(browser.shown("main > section")) == 8
    assert len(browser.shown(".digit")) == 1
    assert not browser.shown(".controls, button.theme, th button")
    browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_on_paper(browser: Browser) -> None:
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.emulate("dark", media="print")
    browser.resize(794)  # A4
    assert browser.run("return document.documentElement.scrollWidth") <= 794, "nothing is cut off"
    assert len(tables(browser)) == len(browser.all(".choice table")) > 3, "all choices, since none can be made"
    assert not browser.shown(".controls, button.theme, nav")
    assert len(browser.shown("details pre")) == 2
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert not browser.all("details[open]")


def test_labels_and_landmarks(browser: Browser) -> None:
    unnamed = """return [...document.querySelectorAll("input, button, [role=region], svg[role=img]")].filter(part =>
        !(part.ariaLabel || part.textContent.trim() || part.labels?.[0]?.textContent.trim()
          || part.labels?.[0]?.querySelector("img[alt]"))).length"""
    assert browser.run(unnamed) == 0
    assert browser.run("return document.documentElement.lang") == "en"
    assert all(browser.run("return [...document.querySelectorAll('fieldset')].map(f => !!f.querySelector('legend'))"))
