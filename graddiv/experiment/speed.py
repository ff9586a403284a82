"""How fast machines are: what the probe found here, kept in the user's cache folder, and a constant where it did not.

Read without torch, so that lists of targets and recipes stay fast.
"""

import contextlib
import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from graddiv import store
from graddiv.data.files import cache_folder
from graddiv.errors import GradDivError

if TYPE_CHECKING:
    from graddiv.experiment.schema import Experiment

TWO_CORES = 30e9
"""Multiplications per second, about, on two cores of 2020s servers.

Good to a factor of three: a multiplication costs more where few channels of large images wait for memory; `speed of` in
docs/benchmarks.md compares networks.
"""

NEAR = 2.0
"""A network up to so many times as wide, or as narrow, stands for another: beyond that speeds differ too much."""


def known_speed(experiment: "Experiment", device: str = "cpu") -> float | None:
    """Multiplications per second of the experiment's architecture, as tried here before; None if it was not.

    Of several widths the one nearest to the experiment's counts.
    """
    tried = _read().get(_key(experiment, device), {})
    apart = {width: abs(math.log(float(width) / experiment.network.width)) for width in tried}
    nearest = min(apart, key=apart.__getitem__, default=None)
    return tried[nearest] if nearest is not None and apart[nearest] <= math.log(NEAR) else None


def listed_speed(experiment: "Experiment") -> float:
    """Multiplications per second for a list: as tried here before, or of two cores of a server."""
    return known_speed(experiment) or TWO_CORES


def remember(experiment: "Experiment", device: str, speed: float) -> None:
    """Keep what was measured; a cache folder that cannot be written to keeps nothing."""
    found = _read()
    found.setdefault(_key(experiment, device), {})[f"{experiment.network.width:g}"] = float(f"{speed:.4g}")
    with contextlib.suppress(OSError, GradDivError):
        store.make_directory(_file().parent)
        store.write_json(_file(), found)


def _file() -> Path:
    return cache_folder() / "speed.json"


def _read() -> dict[str, dict[str, float]]:
    """Speeds by width, by machine and architecture; none if the file is missing or was damaged."""
    try:
        found = store.read_json(_file())
        return {key: {width: float(speed) for width, speed in of.items()} for key, of in found.items()}
    except (OSError, GradDivError, AttributeError, TypeError, ValueError):
        return {}


def _key(experiment: "Experiment", device: str) -> str:
    """The folder may be shared by several machines, and threads may be limited."""
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    return f"{experiment.network.architecture} on {platform.node()}, {device}, {threads} threads"
