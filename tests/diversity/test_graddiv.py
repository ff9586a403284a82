import datetime
import warnings
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.nn import functional

from graddiv import Dirac, GradDiv, GradDivError, GradDivWarning, RandomizedNetwork, bayesian, randomize
from graddiv.diversity import REGULARIZERS, ramp
from graddiv.seeding import fold, isolated
from tests.helpers import STOCHASTIC, convnet, costly, differentiable, images, labels, network, no_type_checks


def naive(F: RandomizedNetwork, x: Tensor, y: Tensor, name: str, n: int, step: int) -> Tensor:
    """The formula as a researcher would write it down: n graphs of cross-entropy, normalised."""
    x = x.clone().requires_grad_()
    v = []
    for draw in F.distinct_draws([fold(0, "graddiv", step, i) for i in range(n)]):
        loss = functional.cross_entropy(F.bind(draw())(x), y, reduction="sum")
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        v.append(functional.normalize(g.flatten(1), dim=1))
    return REGULARIZERS[name](torch.stack(v)).mean()


def gradient(F: RandomizedNetwork, value: Tensor) -> dict[str, Tensor]:
    names, theta = zip(*F.named_parameters(), strict=True)
    parts = torch.autograd.grad(value, theta, allow_unused=True)
    return {name: g if g is not None else torch.zeros_like(p) for name, g, p in zip(names, parts, theta, strict=True)}


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("kind", costly(STOCHASTIC))
@pytest.mark.parametrize("name", REGULARIZERS)
def test_value_and_gradient_are_those_of_the_naive_formula(name: str, kind: str, low_memory: bool) -> None:
    F, x, y = network(kind, nn.ReLU, batch_norm=True).eval(), images(5), labels(5)
    ours = GradDiv(name, lam=0.7, n=3, low_memory=low_memory)(F, x, y, step=11)
    theirs = 0.7 * naive(F, x, y, name, 3, 11)
    assert torch.allclose(ours, theirs)
    expected = gradient(F, theirs)
    for key, g in gradient(F, ours).items():
        assert torch.allclose(g, expected[key], rtol=1e-6, atol=1e-9), key
    assert any(g.abs().max() > 1e-6 for g in expected.values())


class _Module(nn.Module):
    def __init__(self, F: RandomizedNetwork, diversity: GradDiv) -> None:
        super().__init__()
        self.F, self.diversity = F, diversity

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        value: Tensor = self.diversity(self.F, x, y, step=0)
        return value


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "bayesian") for name in REGULARIZERS), *(("dpp", kind) for kind in STOCHASTIC)]
)
@pytest.mark.parametrize("low_memory", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_gradient_matches_finite_differences_on_a_smooth_network(name: str, kind: str, low_memory: bool) -> None:
    F, x, y = network(kind), images(3), labels(3)
    wrapped = _Module(F, GradDiv(name, n=3, low_memory=low_memory))
    names, theta = zip(*differentiable(F).items(), strict=True)

    def value(*values: Tensor) -> Tensor:
        return functional_call(wrapped, {f"F.{n}": v for n, v in zip(names, values, strict=True)}, (x, y))

    assert gradcheck(value, theta, fast_mode=True, atol=1e-4)


def test_lambda_waits_then_ramps_then_stays() -> None:
    assert [ramp(step, 2, 4) for step in range(8)] == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1]
    assert [ramp(step, 2, 0) for step in range(4)] == [0, 0, 1, 1]
    assert ramp(0, 0, 0) == 1


def test_nothing_is_computed_while_lambda_is_zero() -> None:
    class Counting(Dirac):
        draws = 0

        def draw(self, seed: int, batch: Tensor | None = None) -> dict[str, Tensor]:
            Counting.draws += 1
            return {}

    F, diversity = Counting(convnet()), GradDiv("mean", lam=2.0, warmup=5, rampup=10)
    assert diversity(F, images(3), labels(3), step=5) == 0
    assert Counting.draws == 0
    assert diversity.parts == (0.0, None, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diversity(F, images(3), labels(3), step=6)
    assert Counting.draws == 3
    assert diversity.parts.lam == pytest.approx(0.2)


def test_the_parts_are_kept_for_the_log() -> None:
    F, x, y = network("bayesian"), images(6), labels(6)
    diversity = GradDiv("dpp", lam=0.5)
    value = diversity(F, x, y, step=0)
    assert torch.allclose(value, 0.5 * diversity.parts.R)
    assert torch.allclose(diversity.parts.cosine, naive(F, x, y, "mean", 3, 0))
    assert diversity.parts.masked == 0
    assert not diversity.parts.R.requires_grad


@pytest.mark.parametrize("low_memory", [False, True])
def test_dead_examples_are_masked_counted_and_count_in_the_denominator(low_memory: bool) -> None:
    """A ReLU network that is dead on one image: the others' R and gradient are as without it, over the full b."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 30), nn.ReLU(), nn.Linear(30, 4)).double()
    F, x, y = bayesian(module, 0.01), images(4), labels(4)
    with torch.no_grad():
        module[1].bias.fill_(-1.0)
        module[1].weight.abs_()
    x[2] = 0.0
    x[3] = 3.0
    diversity = GradDiv("mean", n=3, low_memory=low_memory)
    value = diversity(F, x, y, step=0)
    assert diversity.parts.masked == 1
    keep = torch.tensor([0, 1, 3])
    rest = GradDiv("mean", n=3)(F, x[keep], y[keep], step=0)
    assert torch.allclose(value, rest * 3 / 4)
    expected = gradient(F, rest * 3 / 4)
    assert all(torch.allclose(g, expected[name]) for name, g in gradient(F, value).items())


@pytest.mark.parametrize("low_memory", [False, True])
def test_batch_norm_uses_and_keeps_its_running_statistics_in_train_mode(low_memory: bool) -> None:
    F, x, y = network("bayesian", batch_norm=True).train(), images(6), labels(6)
    norm = F.module[1]
    with torch.no_grad():
        F.bind(F.draw(7))(x)
    before = norm.running_mean.clone(), norm.running_var.clone()
    training = GradDiv("mean", low_memory=low_memory)(F, x, y, step=0)
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])
    assert norm.training
    assert torch.equal(training, GradDiv("mean", low_memory=low_memory)(F.eval(), x, y, step=0))


def test_noise_is_addressed_by_the_step() -> None:
    F, x, y = network("bayesian"), images(6), labels(6)
    values = [GradDiv("mean", seed=seed)(F, x, y, step=step).item() for seed, step in [(0, 1), (0, 1), (0, 2), (1, 1)]]
    assert values[0] == values[1]
    assert len(set(values)) == 3


def test_with_ids_noise_on_activations_is_the_examples_own() -> None:
    F, x, y = network("rse"), images(6), labels(6)
    diversity, ids = GradDiv("mean"), torch.tensor([5, 6, 7, 8, 9, 10])
    whole = diversity(F, x, y, step=3, ids=ids)
    halves = [diversity(F, x[k], y[k], step=3, ids=ids[k]) for k in (slice(0, 3), slice(3, 6))]
    assert torch.allclose(whole, sum(halves) / 2)
    assert not torch.allclose(whole, diversity(F, x, y, step=3))


def test_under_no_grad_it_is_a_measurement() -> None:
    F, x, y = network("bayesian"), images(6), labels(6)
    expected = GradDiv("dpp")(F, x, y, step=0)
    for low_memory in (False, True):
        with torch.no_grad():
            value = GradDiv("dpp", low_memory=low_memory)(F, x, y, step=0)
        assert torch.equal(value, expected)
        assert not value.requires_grad


def test_it_moves_the_gradients_apart() -> None:
    """Twenty steps on R alone: the cosines fall."""
    F, x, y = bayesian(convnet(), 0.03), images(16), labels(16)
    diversity = GradDiv("mean", n=4)
    optimizer = torch.optim.Adam(F.parameters(), lr=0.02)
    cosines = []
    for step in range(20):
        optimizer.zero_grad()
        diversity(F, x, y, step=step).backward()
        optimizer.step()
        cosines.append(diversity.parts.cosine.item())
    assert sum(cosines[-5:]) < 0.8 * sum(cosines[:5])


def test_a_deterministic_network_is_told_so_once() -> None:
    diversity, F = GradDiv("mean"), Dirac(convnet())
    with pytest.warns(GradDivWarning, match="a deterministic network have, and R can teach it nothing"):
        diversity(F, images(3), labels(3), step=0)
    diversity(F, images(3), labels(3), step=1)  # warnings are errors here: a second one would fail
    with pytest.warns(GradDivWarning, match="deterministic"):
        GradDiv("dpp", low_memory=True)(randomize(convnet()), images(3), labels(3), step=0)


def test_bad_arguments() -> None:
    F, x, y = network("bayesian"), images(4), labels(4)
    with pytest.raises(GradDivError, match="n is 1, expected at least 2"):
        GradDiv("mean", n=1)
    with pytest.raises(GradDivError, match="lam is -1"):
        GradDiv("mean", lam=-1.0)
    with pytest.raises(GradDivError, match="unknown regularizer 'ddp', did you mean 'dpp'"):
        GradDiv("ddp")
    with no_type_checks():
        with pytest.raises(GradDivError, match=r"y has shape \(4, 1\).*for each of the 4 examples"):
            GradDiv()(F, x, y[:, None], step=0)
        with pytest.raises(GradDivError, match=r"y has shape \(3,\)"):
            GradDiv()(F, x, y[:3], step=0)
        with pytest.raises(GradDivError, match="float64"):
            GradDiv()(F, x, y.double(), step=0)
        with pytest.raises(GradDivError, match=r"F is a Sequential.*randomize\(module\)"):
            GradDiv()(convnet(), x, y, step=0)
        with pytest.raises(GradDivError, match="F is a BoundModel, expected a RandomizedNetwork"):
            GradDiv()(F.bind(F.draw(0)), x, y, step=0)


def test_gradients_that_are_not_finite_stop_with_a_sentence() -> None:
    F = network("bayesian")
    with torch.no_grad():
        F.module[0].weight.fill_(float("nan"))
    with pytest.raises(GradDivError, match="4 of 4 examples are not finite"):
        GradDiv()(F, images(4), labels(4), step=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it imports its compiler
@pytest.mark.slow
def test_a_compiled_module_is_refused() -> None:
    x, y = images(2), labels(2)
    in_place = convnet()
    in_place.compile()
    with pytest.raises(GradDivError, match=r"torch\.compile, which has no double backward"), no_type_checks():
        GradDiv()(torch.compile(network("bayesian")), x, y, step=0)
    for module in (torch.compile(convnet()), in_place):
        with pytest.raises(GradDivError, match=r"torch\.compile, which has no double backward"):
            GradDiv()(randomize(module), x, y, step=0)


@pytest.mark.parametrize("low_memory", [False, True])
def test_degenerate_calls(low_memory: bool) -> None:
    diversity = GradDiv("mean", low_memory=low_memory)
    F = network("bayesian")
    assert diversity(F, images(0), labels(0), step=0) == 0
    frozen = network("bayesian").requires_grad_(False)
    expected = diversity(F, images(3), labels(3), step=0)
    assert torch.equal(diversity(frozen, images(3), labels(3), step=0), expected)
    with torch.no_grad():
        for p in F.module.parameters():
            p.zero_()
        for p in F.log_sigma.values():
            p.fill_(-100.0)
    assert diversity(F, images(3), labels(3), step=0) == 0
    assert diversity.parts.masked == 3
    assert diversity.parts.cosine == 0


def test_the_papers_spelling_is_understood() -> None:
    with pytest.raises(GradDivError, match="unknown regularizer 'DPP', did you mean 'dpp'"):
        GradDiv("DPP")


def test_low_memory_keeps_one_graph_alive() -> None:
    """Count the graphs by the sample models' outputs that are still alive when another model is called."""
    most = {}
    for low_memory in (False, True):
        F, alive, counts = network("bayesian"), weakref.WeakSet(), []
        bind = F.bind

        def watched(noise, theta=None, bind=bind, alive=alive, counts=counts):  # type: ignore[no-untyped-def]
            f = bind(noise, theta)

            def g(x: Tensor) -> Tensor:
                z = f(x)
                if any(w.requires_grad for w in f.tensors.values()):
                    token = _Token()
                    z.register_hook(lambda grad, token=token: None)
                    alive.add(token)
                    counts.append(len(alive))
                return z

            return g

        F.bind = watched
        GradDiv("mean", n=5, low_memory=low_memory)(F, images(2), labels(2), step=0).backward()
        most[low_memory] = max(counts)
    assert most == {False: 5, True: 1}


class _Token:
    pass


def _ddp_worker(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{path}.meeting", rank=rank, world_size=2, timeout=patience)
    rows = slice(3 * rank, 3 * rank + 3)
    found = []
    for low_memory in (False, True):
        wrapped = nn.parallel.DistributedDataParallel(
            _Module(network("bayesian"), GradDiv("dpp", low_memory=low_memory)), find_unused_parameters=True
        )
        wrapped(images(6)[rows], labels(6)[rows]).backward()
        found.append({name: p.grad for name, p in wrapped.module.F.named_parameters() if p.grad is not None})
    if rank == 0:
        torch.save(found, path)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_gradients_of_one(tmp_path: Path) -> None:
    path = str(tmp_path / "gradient.pt")
    torch.multiprocessing.spawn(_ddp_worker, (path,), nprocs=2)
    F = network("bayesian")
    expected = gradient(F, GradDiv("dpp")(F, images(6), labels(6), step=0))
    for found in torch.load(path):
        assert len(found) > 4
        for name, g in found.items():
            assert torch.allclose(g, expected[name], rtol=1e-9, atol=1e-12), name


class Attention(nn.Module):
    """The pixels of an image in rows that look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x.squeeze(1))
        seen: Tensor = self.attention(rows, rows, rows, need_weights=False)[0]
        logits: Tensor = self.out(seen.mean(1))
        return logits


@pytest.mark.parametrize("low_memory", [False, True])
def test_attention_is_differentiated_twice(low_memory: bool) -> None:
    """The fast kernels of attention have no second derivative, so the formula itself is used; it is the derivative."""
    with isolated(0):
        F = bayesian(Attention().double(), 0.1)
    x, y, weight = images(3), labels(3) % 3, F.module.embed.weight
    R = GradDiv("mean", n=2, low_memory=low_memory)
    R(F, x, y, step=0).backward()
    direction = torch.ones_like(weight) / weight.numel()
    h, found = 1e-5, float((weight.grad * direction).sum())
    values = []
    with torch.no_grad():
        for side in (h, -2 * h):
            weight += side * direction
            values.append(float(R(F, x, y, step=0)))
    assert found == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-4)
    assert abs(found) > 1e-6
