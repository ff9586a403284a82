"""A real browser, headless: Debian's chromium and chromium-driver under selenium.

Where they are absent these tests are skipped, unless --browser asks for them: then absence is an error.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from graddiv.report.page import render
from tests.report import fake

BROWSER = which("chromium") or which("google-chrome")
DRIVER = which("chromedriver")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--browser", action="store_true", help="fail where there is no browser to test the report in")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs selenium, chromium and chromedriver; skipped where absent")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = absent()
    if missing and not config.getoption("--browser", default=False):
        for item in items:
            if "browser" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=missing))


def absent() -> str | None:
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "no selenium: pip install -r requirements/browser.txt"
    return None if BROWSER and DRIVER else "no browser: apt-get install chromium chromium-driver"


class Browser:
    """What the tests do with a browser."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, width: int = 1280, height: int = 900, scheme: str = "light", scripts: bool = True) -> None:
        """Load the page on a screen of this size, in this colour scheme."""
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.emulate(scheme)
        self.resize(width, height)
        self.driver.get(self.address)

    def resize(self, width: int, height: int = 844) -> None:
        """Below 600 pixels it is a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def emulate(self, scheme: str, media: str = "") -> None:
        """Prefer a colour scheme; as on paper if media is print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def command(self, name: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def shown(self, selector: str) -> list[Any]:
        return [element for element in self.all(selector) if element.is_displayed()]

    def choose(self, control: str, value: str) -> None:
        """Click a radio button, the first of that name and value."""
        self.run("arguments[0].click()", self.all(f"[data-control='{control}'] input[value='{value}']")[0])

    def press(self, element: Any, key: str) -> None:
        self.run("arguments[0].focus()", element)
        element.send_keys(key)

    def requests(self) -> list[str]:
        """Addresses that were asked for since last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [run.path for run in fake.comparison(tmp_path_factory.mktemp("runs")).runs]
    plan = fake.plan(runs, "accuracy-epsilon", "scatter", "kappa")
    return render(plan, tmp_path_factory.mktemp("report"))[0]


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    missing = absent()
    assert missing is None, missing
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def browser(driver: Any, report: Path) -> Iterator[Browser]:
    """On a fresh page; no test may leave a message on the console or have asked for anything but the page."""
    found = Browser(driver, report.as_uri())
    found.open()
    yield found
    assert not driver.get_log("browser")
    assert {address for address in found.requests() if not address.startswith("data:")} <= {found.address}
