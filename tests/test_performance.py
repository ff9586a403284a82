import platform

import torch

from graddiv import bayesian
from graddiv.networks import mnist_cnn
from graddiv.performance import channels_last, keep_memory


def test_the_memory_format_changes_no_value() -> None:
    x, module = torch.rand(4, 1, 28, 28), mnist_cnn(0.25)
    expected = module(x)
    last = channels_last(x)
    assert torch.equal(last, x)
    assert last.data_ptr() == x.data_ptr()
    found = channels_last(module)(last)
    assert torch.allclose(found, expected, atol=1e-6)


def test_activations_stay_in_the_format_from_the_first_layer_on() -> None:
    for channels in (1, 3):
        x = channels_last(torch.rand(2, channels, 8, 8))
        y = channels_last(torch.nn.Conv2d(channels, 4, 3))(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert not y.is_contiguous()


def test_bound_weights_are_stored_as_the_modules_are() -> None:
    F = channels_last(bayesian(mnist_cnn(0.1), 0.05))
    with torch.no_grad():
        tensors = F.realise(F.draw(0), F.theta())
    assert {name: w.stride() for name, w in tensors.items()} == {n: p.stride() for n, p in F.module.named_parameters()}


def test_what_is_not_a_batch_of_images_is_left_alone() -> None:
    x = torch.rand(4, 7)
    assert channels_last(x) is x


def test_keeping_memory_can_be_asked_for_twice() -> None:
    assert keep_memory() == keep_memory() == (platform.libc_ver()[0] == "glibc")
