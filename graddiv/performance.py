"""Memory formats and a setting that make convolutions on the CPU faster; only on request, nothing at import."""

import ctypes
import sys
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

TensorOrModule = TypeVar("TensorOrModule", Tensor, nn.Module)


def channels_last(what: TensorOrModule) -> TensorOrModule:
    """Return images (b c h w), or convert a module in place, to the memory format in which convolutions are fastest.

    Values do not change.  Images of one channel fit both formats; torch then takes the slower one, unless their
    strides say otherwise, so they are viewed with strides that do.
    """
    if isinstance(what, nn.Module):
        return cast(TensorOrModule, what.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    if what.dim() == 4 and what.shape[1] == 1 and what.is_contiguous():
        _, _, h, w = what.shape
        return what.as_strided(what.shape, (h * w, 1, w, 1))
    return what.contiguous(memory_format=torch.channels_last) if what.dim() == 4 else what


def stored_as(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with the strides of another one of its shape: kernels for two memory formats at once are slow."""
    if tensor.stride() == like.stride():
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def keep_memory() -> bool:
    """Let malloc keep freed pages for this process instead of returning them; return whether that worked.

    Activations are megabytes, which glibc otherwise gives back to the system and fetches again, page by page, in
    every pass.  Only glibc (Linux) is asked; elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another libc
        return False
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    return bool(mallopt(trim_threshold, most)) and bool(mallopt(mmap_threshold, most))
