"""What every randomized network promises, whatever its noise."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from graddiv import GradDivError
from graddiv.networks import Dirac, running_statistics
from tests.helpers import (
    DETERMINISTIC,
    FINITE,
    KINDS,
    PER_EXAMPLE,
    STOCHASTIC,
    UNBOUNDED,
    WITH_TENSORS,
    convnet,
    differentiable,
    images,
    labels,
    network,
    with_dropout,
)

WITH_REAL_NOISE = [kind for kind in UNBOUNDED if kind not in ("mixup", "foreign")]

every_kind = pytest.mark.parametrize("kind", KINDS)
every_stochastic_kind = pytest.mark.parametrize("kind", STOCHASTIC)


@every_kind
def test_the_same_noise_is_the_same_function(kind: str) -> None:
    F, x = network(kind), images(5)
    f, again = F.bind(F.draw(3)), F.bind(F.draw(3))
    assert torch.equal(f(x), f(x))
    assert torch.equal(f(x), again(x))


@every_stochastic_kind
def test_other_noise_is_another_function(kind: str) -> None:
    F, x = network(kind), images(5)
    one, other = (draw() for draw in F.distinct_draws([3, 4]))
    assert not torch.allclose(F.bind(one)(x), F.bind(other)(x))


@every_kind
def test_the_first_three_of_ten_are_the_three(kind: str) -> None:
    F, x = network(kind), images(3)
    ten, three = F.sample(10, seed=1), F.sample(3, seed=1)
    assert len(ten) == 10
    for f, g in zip(ten, three, strict=False):
        assert torch.equal(f(x), g(x))


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_sample_models_differ_from_each_other_and_between_seeds(kind: str) -> None:
    F, x = network(kind), images(6)
    outputs = torch.stack([f(x) for seed in (1, 2) for f in F.sample(3, seed)]).flatten(1)
    assert (torch.cdist(outputs, outputs) + torch.eye(6)).min() > 1e-6


@pytest.mark.slow
def test_the_global_random_state_is_left_as_found() -> None:
    """In a process of its own: beartype, which checks our types under pytest, itself draws from Python's state."""
    script = """
import torch
from graddiv.networks import architecture
from tests.helpers import KINDS, convnet, global_rng_untouched, images
for kind in KINDS:
    module, x = convnet(), images(4)
    with global_rng_untouched():
        F = KINDS[kind](module)
        architecture("mnist_cnn", 0.1, seed=1)
        noise = F.draw(5)
        F.draw(5, batch=torch.arange(4))
        F.bind(noise)(x).sum().backward()
        F.sample(3, 9)
try:
    with global_rng_untouched():
        torch.rand(1)
except AssertionError:
    print("the watch works")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "the watch works\n", done.stderr


@every_kind
def test_the_state_dict_holds_no_noise(kind: str) -> None:
    F, x = network(kind), images(4)
    before = {name: tensor.clone() for name, tensor in F.state_dict().items()}
    for f in F.sample(2, 0):
        f(x)
    assert F.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in F.state_dict().items())
    assert not [name for name in before if "noise" in name or "pool" in name]


@every_kind
def test_under_no_grad_the_weights_are_constants(kind: str) -> None:
    F, x = network(kind), images(4).requires_grad_()
    with torch.no_grad():
        f = F.bind(F.draw(0))
    f(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert all(p.grad is None and p.requires_grad for p in F.parameters())


@every_kind
def test_both_paths_of_bind_compute_the_same_bits(kind: str) -> None:
    F, x = network(kind), images(4)
    noise = F.draw(2)
    with torch.no_grad():
        constant = F.bind(noise)
    assert torch.equal(F.bind(noise)(x), constant(x))


@every_kind
def test_theta_gradients_with_several_models_alive_match_finite_differences(kind: str) -> None:
    F, x, y = network(kind), images(3), labels(3)
    names, theta = zip(*differentiable(F).items(), strict=True)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        def models() -> torch.Tensor:
            alive = F.sample(3, seed=4)  # all bound before any is called
            return torch.stack([nn.functional.cross_entropy(f(x), y) for f in alive]).mean()

        return torch.func.functional_call(_Calls(F, models), {f"F.{n}": v for n, v in zip(names, values, strict=True)})

    assert gradcheck(loss, theta, fast_mode=True)


@every_kind
@pytest.mark.slow
def test_double_backward_through_bind(kind: str) -> None:
    """Differentiate the input gradient with respect to theta, as the regularizer does."""
    F, x, y = network(kind), images(2), labels(2)
    names, theta = zip(*differentiable(F).items(), strict=True)

    def loss(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        def model() -> torch.Tensor:
            return nn.functional.cross_entropy(F.bind(F.draw(4))(x), y)

        return torch.func.functional_call(_Calls(F, model), {f"F.{n}": v for n, v in zip(names, values, strict=True)})

    # a proxy is not the derivative of anything, so only theta can be compared with differences
    assert gradgradcheck(loss, (x.requires_grad_(not F.proxy_gradient), *theta), fast_mode=True)


class _Calls(nn.Module):
    """Lets functional_call replace F's parameters while `what` runs."""

    def __init__(self, F: nn.Module, what: object) -> None:
        super().__init__()
        self.F = F
        self.what = what

    def forward(self) -> torch.Tensor:
        return self.what()  # type: ignore[operator]


@every_kind
def test_sample_models_treat_every_row_alike_or_say_that_they_do_not(kind: str) -> None:
    F, x = network(kind), images(6)
    f = F.bind(F.draw(1))
    whole = f(x)
    cut = torch.cat([f(x[:1]), f(x[1:4]), f(x[4:])])
    assert torch.allclose(whole, cut) == F.pointwise
    assert F.pointwise == (kind != "foreign")


@pytest.mark.parametrize("kind", PER_EXAMPLE)
def test_per_example_noise_is_addressed_by_index_not_by_batch(kind: str) -> None:
    F, x = network(kind), images(6)
    ids = torch.tensor([10, 3, 99, 0, 7, 8])
    whole = F.bind(F.draw(5, batch=ids))(x)
    shuffle = torch.tensor([4, 1, 3])
    assert torch.allclose(F.bind(F.draw(5, batch=ids[shuffle]))(x[shuffle]), whole[shuffle])
    same_image = F.bind(F.draw(5, batch=ids))(x[:1].expand(6, -1, -1, -1))
    assert len(same_image.unique(dim=0)) > 1


@pytest.mark.parametrize("kind", ["bayesian", "pni"])
def test_weight_noise_is_shared_by_the_batch(kind: str) -> None:
    F = network(kind)
    shared, drawn_for_batch = F.draw(5), F.draw(5, batch=torch.arange(4))
    assert shared
    assert shared.keys() == drawn_for_batch.keys()
    assert all(torch.equal(shared[name], drawn_for_batch[name]) for name in shared)


def test_calling_the_distribution_itself_is_an_error_that_teaches() -> None:
    with pytest.raises(TypeError, match=r"F\.bind\(F\.draw\(seed\)\)"):
        network("bayesian")(images(2))


@every_kind
def test_noise_of_another_network_is_refused(kind: str) -> None:
    wrong = {"nonsense": torch.zeros(3)} if kind != "foreign" else {"a": torch.zeros(1)}
    with pytest.raises(GradDivError, match="noise"):
        network(kind).bind(wrong)


@pytest.mark.parametrize("kind", WITH_REAL_NOISE)
def test_noise_of_the_wrong_shape_names_the_tensor_and_both_shapes(kind: str) -> None:
    F = network(kind)
    noise = dict(F.draw(0))
    name = next(iter(noise))
    noise[name] = noise[name][..., :0]
    with pytest.raises(GradDivError, match=rf"'{name}' has shape .*expected"):
        F.bind(noise)


@pytest.mark.parametrize("kind", WITH_TENSORS)
def test_an_integer_is_not_noise_for_a_network_with_tensors(kind: str) -> None:
    with pytest.raises(GradDivError, match=r"the integer 3.*F\.draw"):
        network(kind).bind(3)


def test_dirac_binds_to_the_module_itself() -> None:
    module, x = convnet(), images(3)
    F = Dirac(module)
    assert torch.equal(F.bind(F.draw(0))(x), module(x))
    assert torch.equal(F(x), module(x))
    assert [id(p) for p in F.parameters()] == [id(p) for p in module.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_running_statistics_are_used_and_left_alone(kind: str) -> None:
    F, x = network(kind, batch_norm=True), images(8)
    with torch.no_grad():
        F.bind(F.draw(0))(x)  # train mode: moves the statistics
    [norm] = [m for m in F.modules() if isinstance(m, nn.BatchNorm2d) and m.num_batches_tracked > 0]
    statistics = norm.running_mean.clone()
    noise = F.draw(0)
    with torch.no_grad(), running_statistics(F):
        inside = F.bind(noise)(x)
        assert not norm.training
        assert F.training
    assert norm.training
    assert torch.equal(norm.running_mean, statistics)
    F.eval()
    with torch.no_grad():
        assert torch.equal(F.bind(noise)(x), inside)
    with running_statistics(F):
        pass
    assert not norm.training


def test_running_statistics_are_restored_after_an_error() -> None:
    F = network("bayesian", batch_norm=True)
    with pytest.raises(ZeroDivisionError), running_statistics(F):
        1 / 0  # noqa: B018
    assert all(m.training for m in F.modules())


@pytest.mark.parametrize("kind", WITH_REAL_NOISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_device_and_dtype_of_the_parameters(kind: str, dtype: torch.dtype) -> None:
    F = network(kind).to(dtype)
    assert {(tensor.dtype, tensor.device) for tensor in F.draw(0).values()} == {(dtype, F.device)}


@pytest.mark.parametrize("kind", ["bayesian", "pni"])
def test_noise_does_not_depend_on_the_memory_format(kind: str) -> None:
    F = network(kind)
    plain = F.draw(3)
    last = F.to(memory_format=torch.channels_last).draw(3)
    assert all(torch.equal(plain[name], last[name]) for name in plain)
    assert last["3.weight"].stride() != plain["3.weight"].stride()
    assert last["3.weight"].stride() == F.module[3].weight.stride()


@every_kind
def test_each_of_several_models_may_be_trained_by_a_backward_pass_of_its_own(kind: str) -> None:
    F, x, y = network(kind), images(3), labels(3)
    for f in F.sample(3, 0):
        nn.functional.cross_entropy(f(x), y).backward()
    apart = {name: p.grad.clone() for name, p in F.named_parameters() if p.grad is not None}
    F.zero_grad()
    sum(nn.functional.cross_entropy(f(x), y) for f in F.sample(3, 0)).backward()
    together = {name: p.grad for name, p in F.named_parameters() if p.grad is not None}
    assert apart.keys() == together.keys()
    assert kind in FINITE or len(apart) == len(list(F.parameters()))
    assert all(torch.allclose(apart[name], together[name]) for name in apart)


@pytest.mark.parametrize("kind", WITH_TENSORS)
def test_dropout_that_would_draw_behind_the_noise_is_refused(kind: str) -> None:
    F = KINDS[kind](with_dropout(convnet()))
    with pytest.raises(GradDivError, match=r"dropout in train mode, which draws behind the noise.*randomize"):
        F.bind(F.draw(0))(images(2))
    F.eval()
    assert F.bind(F.draw(0))(images(2)).shape == (2, 4)


@pytest.mark.parametrize("kind", PER_EXAMPLE)
def test_noise_drawn_for_another_batch_is_refused(kind: str) -> None:
    F = network(kind)
    with pytest.raises(GradDivError, match="drawn for 3 examples and met 5"):
        F.bind(F.draw(0, batch=torch.arange(3)))(images(5))


@every_kind
def test_a_randomized_network_is_not_made_random_twice(kind: str) -> None:
    with pytest.raises(GradDivError, match="is a RandomizedNetwork already"):
        Dirac(network(kind))


def test_a_module_without_parameters_has_a_device_too() -> None:
    F = Dirac(nn.Flatten())
    assert F.bind(F.draw(0))(images(2)).shape == (2, 36)


@every_kind
def test_draws_average_to_the_mean_of_the_noise(kind: str) -> None:
    F = network(kind)
    mean, draws = F.mean(), [F.draw(seed) for seed in range(200)]
    if mean is None:
        return
    assert mean.keys() == draws[0].keys()
    for site, expected in mean.items():
        drawn = torch.stack([noise[site] for noise in draws])
        if expected.shape == drawn.shape[1:]:  # SAP's has no rows: it stands for the network that is not pruned
            assert ((drawn.mean(0) - expected).abs() <= 5 * drawn.std(0) / 200**0.5).all(), site
        else:
            assert kind == "sap"


@every_kind
def test_the_mean_of_the_noise_makes_a_network(kind: str) -> None:
    F, x = network(kind), images(3)
    if (mean := F.mean()) is not None:
        assert F.bind(mean)(x).isfinite().all()


@every_kind
def test_finite_noise_has_all_its_probability_in_its_support(kind: str) -> None:
    support = network(kind).support()
    assert (support is not None) == (kind in (*DETERMINISTIC, *FINITE))
    if support is not None:
        assert len(support.noises) == len(support.probabilities)
        assert support.probabilities.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("kind", FINITE)
def test_draws_follow_the_support(kind: str) -> None:
    """Every value of the noise comes as often as its probability says."""
    F, draws = network(kind), 2000
    support = F.support()
    values = [tuple(v.tolist() for v in map(torch.flatten, noise.values())) for noise in support.noises]
    counts = dict.fromkeys(map(str, values), 0)
    for seed in range(draws):
        counts[str(tuple(v.tolist() for v in map(torch.flatten, F.draw(seed).values())))] += 1
    expected = support.probabilities * draws
    assert ((torch.tensor(list(counts.values())) - expected).abs() < 5 * expected.sqrt()).all()


@pytest.mark.parametrize("kind", FINITE)
def test_distinct_draws_do_not_repeat_a_sample_model(kind: str) -> None:
    F, x = network(kind), images(3)
    outcomes = len(F.support().noises)
    for seed in range(5):
        outputs = [F.bind(draw())(x) for draw in F.distinct_draws(range(seed, seed + outcomes + 2))]
        assert len(outputs) == outcomes
        assert len({output.sum().item() for output in outputs}) == outcomes
