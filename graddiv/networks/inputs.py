"""Calling a network: which inputs and outputs are valid, and the mode of its layers meanwhile."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from graddiv.errors import GradDivError

HALF = (torch.float16, torch.bfloat16)
NO_ARRAY = "Can't call numpy() on Tensor that requires grad"  #: What torch says where an array would cut a gradient.
MAKE_LABELS = "y.long() converts numbers of another type, y.argmax(1) one-hot rows"


@contextmanager
def switched(layers: Iterable[nn.Module], *, training: bool) -> Iterator[None]:
    """Put layers in train or eval mode, and put them back afterwards: the only place where modes are switched."""
    others = [layer for layer in layers if layer.training != training]
    for layer in others:
        layer.training = training
    try:
        yield
    finally:
        for layer in others:
            layer.training = not training


def running_statistics(module: nn.Module) -> AbstractContextManager[None]:
    """Let every batch norm inside use its running statistics, and neither read nor move batch statistics.

    Attacks and the regularizer run inside this: it is the gradient the adversary sees, and examples stay independent.
    """
    return switched((m for m in norm_layers(module) if m._buffers["running_mean"] is not None), training=False)


def norm_layers(module: nn.Module) -> list[nn.Module]:
    """Return the batch-norm layers, known by their buffers: foreign (Bayesian, synchronized) ones count too."""
    return [m for m in module.modules() if "running_mean" in m._buffers]


def plain(name: str, value: object) -> Tensor:
    """The tensor without its graph, copied if it was made in inference mode, so that torch can differentiate."""
    if not isinstance(value, Tensor):
        raise GradDivError(f"{name} is of type {type(value).__name__}, expected a tensor: torch.as_tensor({name})")
    return value.detach().clone() if value.is_inference() else value.detach()


def numbers(name: str, value: object) -> Tensor:
    """A plain tensor, also of the numbers in a list or an array."""
    if isinstance(value, list | tuple | np.ndarray):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError):
            words = [each for each in value if isinstance(each, str)]
            wrong = f"words such as {str(words[0])!r}" if words else "what is no rectangle of numbers"
            wanted = "numbers of classes, in the order of the network's outputs" if name == "y" else "numbers"
            raise GradDivError(f"{name} holds {wrong}, expected {wanted}") from None
    return plain(name, value)


def check_takes(module: nn.Module, x: Tensor) -> None:
    """Refuse images that the parameters of a network cannot be multiplied with, and parameters without gradients."""
    if not (parameters := [p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]):
        return
    types = {p.dtype for p in parameters}
    if half := types.intersection(HALF):
        raise GradDivError(
            f"the network has parameters of {half.pop()}, in which small steps and differences of gradients are lost "
            "to rounding: call .float() on it and on x"
        )
    if x.dtype not in types:
        raise GradDivError(f"x is of {x.dtype} and the network of {parameters[0].dtype}: convert x to that type")
    if all(p.device != x.device for p in parameters):
        raise GradDivError(f"x lies on {x.device} and the network on {parameters[0].device}: move x there")
    if any(p.is_inference() for p in parameters):
        raise GradDivError(
            "the network was made inside torch.inference_mode(), where torch keeps no gradients: make it outside"
        )


def check_labels(y: Tensor, examples: int) -> None:
    """Refuse labels that are not one class for each example."""
    if y.dtype != torch.int64 or y.shape != (examples,):
        wanted = f"one int64 label for each of the {examples} examples: {MAKE_LABELS}"
        raise GradDivError(f"y has shape {tuple(y.shape)} and type {y.dtype}, expected {wanted}")


def check_is_module(module: object) -> None:
    """Refuse what is not a module: most often a class instead of an instance, or a function."""
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise GradDivError(f"the network is the class {module.__name__}, expected a module: {module.__name__}()")
    if not isinstance(module, nn.Module):
        raise GradDivError(f"the network is of type {type(module).__name__}, expected a module or a RandomizedNetwork")


@contextmanager
def naming_the_shape(x: Tensor) -> Iterator[None]:
    """Turn torch's error about images that a network cannot take into one that names their shape."""
    try:
        yield
    except GradDivError:
        raise
    except Exception as error:
        shape, reason = tuple(x.shape[1:]), (str(error).splitlines() or [type(error).__name__])[0]
        raise GradDivError(f"the network cannot be called with images of shape {shape}: {reason}") from error


def logits_of(output: object, who: str, batch: int) -> Tensor:
    """Return the logits, alone, first in a tuple or by name, as a tensor or an array, once their shape is right."""
    logits = _taken_from(output)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != batch:
        found: object = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        found = f"{found} with {', '.join(map(str, logits))}" if isinstance(logits, Mapping) else found
        wanted = f"logits of shape ({batch}, classes), alone, first in a tuple or named logits"
        one = isinstance(logits, Tensor) and logits.shape == (batch,)
        remedy = "; one number z for each is torch.stack([0 * z, z], 1)" if one else ""
        remedy = "; lambda x: model(x)[NAME] takes another" if isinstance(logits, Mapping) else remedy
        raise GradDivError(f"{who} returned {found} for {batch} inputs, expected {wanted}{remedy}")
    if logits.shape[1] == 0:
        raise GradDivError(f"{who} returned {tuple(logits.shape)}: the network has 0 classes, expected at least 2")
    if not logits.is_floating_point():
        raise GradDivError(f"{who} returned outputs of {logits.dtype}, expected floating-point logits")
    return logits.float() if logits.dtype in HALF else logits


def _taken_from(output: object) -> object:
    """What holds the logits in the output of a network."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    return torch.from_numpy(np.array(output)) if isinstance(output, np.ndarray) else output
