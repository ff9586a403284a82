import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graddiv import GradDivError
from graddiv.diversity import directions, input_gradient, mean_gradient
from graddiv.losses import ce, dlr, margin, soft_margin, soft_margin_and_slope
from graddiv.networks import SampleModel
from graddiv.seeding import generator
from tests.helpers import KINDS, STOCHASTIC, convnet, images, labels, network


def scaled(f: object, factor: float) -> object:
    """The same network, so many times surer of itself."""
    return lambda x: factor * f(x)  # type: ignore[operator]


def test_cross_entropy_is_softplus_of_the_soft_margin() -> None:
    z, y = 5 * torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), labels(40, 1, 6)
    assert torch.allclose(ce(z, y), functional.cross_entropy(z, y, reduction="none"))
    assert torch.allclose(soft_margin(z, y), torch.log1p(-z.softmax(1)[range(40), y]) - z.log_softmax(1)[range(40), y])


def test_cross_entropy_stays_finite_where_a_float32_exponential_overflows() -> None:
    z = torch.tensor([[0.0, 79.0, -5.0], [0.0, 81.0, -5.0], [0.0, 300.0, -5.0]], requires_grad=True)
    y = torch.zeros(3, dtype=torch.int64)
    losses = ce(z, y)
    assert torch.allclose(losses, torch.tensor([79.0, 81.0, 300.0]))
    losses.sum().backward()
    assert torch.allclose(z.grad[:, 1], torch.ones(3))


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_gradient_is_the_cross_entropys_up_to_its_length(kind: str) -> None:
    F, x, y = network(kind), images(5), labels(5)
    f = F.bind(F.draw(0))
    with torch.no_grad():  # as inside a caller's evaluation loop
        s, g = input_gradient(f, x, y)
    x.requires_grad_()
    (plain,) = torch.autograd.grad(functional.cross_entropy(f(x), y, reduction="sum"), x)
    assert torch.allclose(s.sigmoid().reshape(-1, 1, 1, 1) * g, plain)
    assert not g.requires_grad
    assert not s.requires_grad


OBJECTIVES = {
    "ce": lambda z, y: (
        functional.cross_entropy(z.flatten(0, 1), y.repeat(len(z)), reduction="none").unflatten(0, z.shape[:2]).mean(0)
    ),
    "soft_margin": lambda z, y: torch.stack([soft_margin(z_i, y) for z_i in z]).mean(0),
    "margin": lambda z, y: torch.stack([margin(z_i, y) for z_i in z]).mean(0),
    "dlr": lambda z, y: torch.stack([dlr(z_i, y) for z_i in z]).mean(0),
    "ensemble": lambda z, y: functional.nll_loss(z.softmax(2).mean(0).log(), y, reduction="none"),
    "likelihood": lambda z, y: torch.stack([(1 - z_i.softmax(1)[range(len(y)), y]).log() for z_i in z]).mean(0),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", STOCHASTIC)
def test_weighted_accumulation_is_the_gradient_of_the_mean(kind: str, objective: str) -> None:
    F, x, y = network(kind), images(6), labels(6)
    models = F.sample(7, 1)
    found = mean_gradient(iter(models), x, y, objective)
    x.requires_grad_()
    z = torch.stack([f(x) for f in models])
    (exact,) = torch.autograd.grad(OBJECTIVES[objective](z, y).sum(), x)
    ours = found.log_scale.exp().reshape(-1, 1, 1, 1) * found.direction
    if objective == "ensemble":
        ours = ours / z.softmax(2).mean(0)[range(6), y].reshape(-1, 1, 1, 1)
    assert torch.allclose(ours, exact, rtol=1e-9, atol=1e-14)
    assert torch.allclose(found.value, OBJECTIVES[objective](z, y))


@pytest.mark.parametrize("factor", [1.0, 30.0, 2000.0])
def test_a_network_sure_of_itself_keeps_exact_directions(factor: float) -> None:
    """Margins up to hundreds of logits, in float32, against float64 cross-entropy of a network less sure of itself."""
    F, x = network("bayesian"), images(20)
    y = torch.stack([f(x) for f in F.sample(20, 9)]).mean(0).argmax(1)  # right labels: the loss saturates
    f = F.bind(F.draw(0))
    _, exact = input_gradient(scaled(f, factor), x, y)
    F32 = network("bayesian").float()
    g = F32.bind({name: noise.float() for name, noise in F.draw(0).items()})
    s, found = input_gradient(scaled(g, factor), x.float(), y)
    cosine = torch.cosine_similarity(found.flatten(1).double(), exact.flatten(1))
    assert cosine.min() > 0.999999
    assert factor < 1000 or s.min() < -200


@pytest.mark.parametrize("objective", ["ce", "ensemble", "soft_margin"])
def test_a_network_sure_of_itself_keeps_an_exact_eot_gradient(objective: str) -> None:
    """The float32 mean gradient where every cross-entropy gradient underflows, against 60-digit weights."""
    mpmath = pytest.importorskip("mpmath")
    F, x = network("bayesian"), images(12)
    y = torch.stack([f(x) for f in F.sample(20, 9)]).mean(0).argmax(1)
    F32 = network("bayesian").float()
    draws = [F.draw(seed) for seed in range(5)]
    exact = [input_gradient(scaled(F.bind(noise), 2000.0), x, y) for noise in draws]
    models = [scaled(F32.bind({k: v.float() for k, v in noise.items()}), 2000.0) for noise in draws]
    found = mean_gradient(models, x.float(), y, objective).direction.flatten(1).double()
    s = torch.stack([s for s, _ in exact])
    assert s.min() < -200
    with mpmath.workdps(60):
        for i in range(len(x)):
            odds = [mpmath.exp(v) for v in s[:, i].tolist()]
            power = {"soft_margin": [mpmath.mpf(1)] * 5, "ce": [o / (1 + o) for o in odds]}
            power["ensemble"] = [o / (1 + o) ** 2 for o in odds]
            top = max(power[objective])
            weights = torch.tensor([float(w / top) for w in power[objective]], dtype=torch.float64)
            mean = sum(w * g[i] for w, (_, g) in zip(weights, exact, strict=True)).flatten()
            # float32 logits of size 2000 carry an error of 1e-4 into each log-weight; it turns the mean by as little
            assert torch.cosine_similarity(found[i], mean, dim=0) > 0.999999


def test_plain_float32_cross_entropy_would_have_lost_the_direction() -> None:
    """Why all this: the ordinary gradient is already wrong at a margin of 18."""
    z = torch.tensor([[18.0, 0.5, -0.5, 0.25]])
    jacobian = torch.eye(4)
    x = torch.zeros(1, 4, requires_grad=True)
    (plain,) = torch.autograd.grad(functional.cross_entropy(z + x @ jacobian, torch.tensor([0])), x)
    _, ours = input_gradient(lambda x: z + x @ jacobian, x, torch.tensor([0]))
    w = torch.tensor([0.5, -0.5, 0.25], dtype=torch.float64).exp()
    exact = torch.cat([torch.tensor([-1.0], dtype=torch.float64), w / w.sum()])
    assert torch.cosine_similarity(ours.double(), exact[None]).item() > 0.999999
    assert torch.cosine_similarity(plain.double(), exact[None]).item() < 0.99


@pytest.mark.slow
def test_the_error_of_the_mean_gradient_falls_as_one_over_sqrt_n() -> None:
    F, x, y = network("bayesian"), images(4), labels(4)
    with torch.no_grad():
        truth = mean_gradient((F.bind(F.draw(i)) for i in range(10**6, 10**6 + 800)), x, y, "soft_margin").direction

        def error(n: int) -> float:
            squares = [
                (mean_gradient(F.sample(n, seed), x, y, "soft_margin").direction - truth).square().sum().item()
                for seed in range(12)
            ]
            return math.sqrt(sum(squares) / len(squares))

        assert error(2) / error(32) == pytest.approx(4, rel=0.25)


def test_memory_does_not_grow_with_n() -> None:
    """Models are taken from the iterator one at a time, and only one graph is alive."""
    alive = [0]
    most = [0]

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            ctx.token = _Token(alive, most)  # type: ignore[attr-defined]
            return x.clone()

        @staticmethod
        def backward(ctx: object, g: Tensor) -> Tensor:
            return g

    module = convnet()
    models = ((lambda x: module(Watched.apply(x))) for _ in range(12))
    mean_gradient(models, images(2), labels(2))
    assert most == [1]
    assert alive == [0]


class _Token:
    def __init__(self, alive: list[int], most: list[int]) -> None:
        self.alive = alive
        alive[0] += 1
        most[0] = max(most[0], alive[0])

    def __del__(self) -> None:
        self.alive[0] -= 1


def test_zero_gradients_are_masked_and_others_are_not() -> None:
    g = torch.ones(3, 4, 5)
    g[1, 2] = 0
    v, usable = directions(g)
    assert usable.tolist() == [True, True, False, True]
    assert (v[1, 2] == 0).all()
    assert torch.allclose(v[0, 2].norm(), torch.ones((), dtype=torch.float64))


def test_a_gradient_that_is_not_finite_is_an_error_with_its_count() -> None:
    g = torch.ones(3, 4, 5)
    g[1, 2, 0] = math.nan
    g[0, 1, 0] = math.inf
    with pytest.raises(GradDivError, match="gradients of 2 of 4 examples are not finite"):
        directions(g)


def test_no_models_is_an_error() -> None:
    with pytest.raises(GradDivError, match="0 sample models"):
        mean_gradient([], images(2), labels(2))


def test_batch_and_feature_axes_may_have_any_shape() -> None:
    linear = nn.Linear(3, 4).double()
    x = torch.rand(5, 3, dtype=torch.float64)
    assert mean_gradient([linear], x, labels(5)).direction.shape == (5, 3)
    assert mean_gradient([linear], x[:0], labels(0)).direction.shape == (0, 3)


def test_bad_labels_objectives_and_outputs_are_told_in_a_sentence() -> None:
    module, x, y = convnet(), images(3), labels(3)
    for bad in (y + 4, y - 5):
        with pytest.raises(GradDivError, match=rf"labels lie in \[{bad.min()}, {bad.max()}\], expected 0\.\.3"):
            mean_gradient([module], x, bad)
    with pytest.raises(GradDivError, match="unknown objective 'ensmble', did you mean 'ensemble'"):
        mean_gradient([module], x, y, "ensmble")
    with pytest.raises(GradDivError, match="3 of 3 examples are not finite"):
        mean_gradient([lambda x: module(x) * math.nan], x, y)
    with pytest.raises(GradDivError, match=r"inside torch\.inference_mode"), torch.inference_mode():
        input_gradient(module, x, y)


@pytest.mark.parametrize("objective", ["ce", "ensemble", "margin"])
def test_every_weighting_keeps_a_direction_where_all_members_are_sure(objective: str) -> None:
    x, y = torch.rand(3, 5, generator=generator(1)), torch.zeros(3, dtype=torch.int64)
    weight = torch.randn(4, 5, generator=generator(2))

    def member(i: int, sign: float) -> SampleModel:
        return lambda x: torch.stack([sign * 1e4 - x @ weight[i], x @ weight[i]], 1)

    for sign in (1.0, -1.0):  # all right, all wrong
        found = mean_gradient([member(i, sign) for i in range(4)], x, y, objective)
        assert torch.isfinite(found.direction).all()
        assert (found.direction.norm(dim=1) > 1e-3).all()


def test_likelier_members_count_for_more() -> None:
    F, x, y = network("bayesian"), images(3), labels(3)
    first, second = F.sample(2, 0)
    p = torch.tensor([0.75, 0.25], dtype=torch.float64)
    for objective in ("ce", "margin", "ensemble"):
        weighted = mean_gradient([first, second], x, y, objective, p)
        repeated = mean_gradient([first, first, first, second], x, y, objective)
        scale = (weighted.log_scale - repeated.log_scale).exp().reshape(-1, 1, 1, 1)
        assert torch.allclose(scale * weighted.direction, repeated.direction)
        assert torch.allclose(weighted.value, repeated.value)


@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4])
def test_the_closed_slope_of_the_soft_margin_is_that_of_autograd_to_the_bit(spread: float) -> None:
    z, y = spread * torch.randn(50, 7, generator=generator(0)), torch.arange(50) % 7
    z[0, 3] = -torch.inf
    leaf = z.clone().requires_grad_()
    s = soft_margin(leaf, y)
    value, slope = soft_margin_and_slope(z, y)
    assert torch.equal(value, s)
    assert torch.equal(slope, torch.autograd.grad(s.sum(), leaf)[0])
