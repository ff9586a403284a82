import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import config as jaxtyping

# The networks of the tests are tiny, and each core has a worker of pytest-xdist: a second thread costs more than it
# brings.  Processes that tests start inherit the environment.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
# Data in the cache folder of this machine must not change what tests see.
_CACHE = tempfile.TemporaryDirectory(prefix="graddiv-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: give --slow"))
        if "realdata" in item.keywords and not os.environ.get("GRADDIV_DATA"):
            item.add_marker(pytest.mark.skip(reason="set GRADDIV_DATA to the folder of the official data files"))


_CHECKED: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Check shapes and types once for each test function, with its first parameters; with --slow always.

    On networks this small the checks take longer than what they check, and what a test calls has the same shapes for
    all of its parameters.
    """
    function = item.nodeid.partition("[")[0]
    jaxtyping.update("jaxtyping_disable", function in _CHECKED and not item.config.getoption("--slow"))
    _CHECKED.add(function)
    try:
        return (yield)
    finally:
        jaxtyping.update("jaxtyping_disable", False)
