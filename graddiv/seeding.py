"""Every random choice has an address, a seed folded with names; nothing draws from the global random state."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from graddiv.distributed import accelerator
from graddiv.errors import GradDivError


def fold(seed: int, *names: int | str) -> int:
    """fold(seed, a, b) = the seed at the address (seed, a, b): 63 well-mixed bits, the same on every machine.

    Distinct addresses give independent streams, so a choice can be repeated without replaying what was drawn before.
    """
    try:
        seed = index(seed)
    except TypeError:
        raise GradDivError(f"seed is {seed!r}, expected a whole number") from None
    address = repr((seed, *(name if isinstance(name, str) else int(name) for name in names)))
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a private generator on `device`."""
    return torch.Generator(device=device).manual_seed(seed)


def uniform(seed: int, ids: Int64[Tensor, " b"] | None, k: int) -> Float64[Tensor, "b k"]:
    """u[i, j] ~ U[0, 1), a hash of (seed, ids[i], j): k numbers for each example, or without ids one row."""
    ids = torch.tensor([-1]) if ids is None else ids  # -1: the address of no example
    counter = ids[:, None] * k + torch.arange(k, device=ids.device)
    z = (counter + 1) * _GOLDEN + _signed(fold(seed, "uniform", k) << 1)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return _shift(z ^ _shift(z, 31), 11).double() * 2.0**-53


Law = Literal["normal", "uniform"]  #: N(0, 1), or U[0, 1)


def numbers(law: Law, seed: int, ids: Int64[Tensor, " b"] | None, k: int, like: Tensor) -> Float[Tensor, "r k"]:
    """Draw k numbers of the type of `like` for each example, or without ids one row: as `uniform`, but for large k."""
    addresses = [seed] if ids is None else [fold(seed, "example", i) for i in ids.tolist()]
    noise = torch.empty(len(addresses), k, device=like.device, dtype=like.dtype)
    # A row is the noise of a whole image, thousands of numbers: the cost of the loop is negligible.
    for row, address in zip(noise, addresses, strict=True):
        g = generator(address, like.device)
        row.normal_(generator=g) if law == "normal" else row.uniform_(generator=g)
    return noise


def _signed(word: int) -> int:
    """Return the 64-bit word as torch's two's-complement integer, whose products wrap as the hash needs it."""
    return (word & (2**64 - 1)) - (2**64 if word & 2**63 else 0)


def _shift(z: Int64[Tensor, "..."], bits: int) -> Int64[Tensor, "..."]:
    """Shift right and fill with zeros; torch's >> copies the sign bit instead."""
    return torch.bitwise_and(z >> bits, 2 ** (64 - bits) - 1)


_GOLDEN = _signed(0x9E3779B97F4A7C15)  # splitmix64 (Steele, Lea, Flood 2014): increment and, above, its finalizer


def states() -> object:
    """Return the states of the global generators of Python, NumPy and torch, to be compared with earlier ones."""
    device, (_, words, *rest) = accelerator(), np.random.get_state()
    of_torch = [torch.random.get_rng_state()]
    of_torch += [] if device is None else [torch.get_device_module(device).get_rng_state()]
    return [random.getstate(), np.asarray(words).tobytes(), rest, *(state.numpy().tobytes() for state in of_torch)]


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Run code that draws from the global states of torch, NumPy and Python as a function of `seed`; restore them."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    device = accelerator()
    devices = range(torch.accelerator.device_count())
    with torch.random.fork_rng(devices, device_type="cuda" if device is None else device.type):
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # not torch.manual_seed: it writes a stack trace for each kind of device that is not there
            torch.default_generator.manual_seed(seed)
            if device is not None:
                torch.get_device_module(device).manual_seed_all(seed)
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
