"""What gradients explain, in closed form; surrogates answer as the network does; a race changes no number."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graddiv.attacks import PGD
from graddiv.evaluation import Cell, Target
from graddiv.evaluation.behaviours import Evidence
from graddiv.evaluation.explained import OWN, explained_share, explanation, follow, random_ends
from graddiv.evaluation.racing import race, raced_job
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.evaluation.surrogates import Smoothed, steps_without_gradient, straight_through_surrogate, substitutes
from graddiv.geometry import LINF, NORMS
from graddiv.networks import Dirac
from graddiv.networks.prediction import predict
from graddiv.records import ExplainedRecord
from tests.audit.planted import BUDGET, Blind, Linear, Noisy, Rounded, Shattered, examples, margin_radii
from tests.helpers import global_rng_untouched, no_type_checks

X, Y = examples(24)
IDS = torch.arange(len(X))
W = torch.linspace(-1, 1.5, 36) + torch.arange(36) % 5


class Decoy(torch.autograd.Function):
    """The identity with a gradient of its own making."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:  # type: ignore[override]
        return -g


def no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return 2 * x


def inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return (2 * x).clone()


def hooked(x: Tensor) -> Tensor:
    x = x * 1
    if x.requires_grad:
        x.register_hook(lambda g: -g)
    return x


def in_place(x: Tensor) -> Tensor:
    x = x * 8
    x.round_()
    return x


def written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[..., 0] = (x > 0.5)[..., 0]
    return y


def accumulated(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for level in (0.4, 0.5, 0.6):
        y += x > level
    return y


TABLE, CODES = torch.linspace(0, 1, 9), torch.linspace(0, 1, 8)
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "round": lambda x: torch.round(8 * x) / 8,
    "floor divide": lambda x: torch.div(x, 0.125, rounding_mode="floor"),
    "sign": lambda x: torch.sign(x - 0.5),
    "in place": in_place,
    "comparison": lambda x: (x > 0.5).float(),
    "several": lambda x: ((x > 0.4) & ~(x > 0.6)).float(),
    "accumulated": accumulated,
    "product": lambda x: (x > 0.5) * torch.ones(()),
    "where": lambda x: torch.where(x > 0.5, torch.ones(()), torch.zeros(())),
    "masked": lambda x: torch.ones_like(x).masked_fill(x > 0.5, 0.0),
    "written": written,
    "clamp": lambda x: (100 * (x - 0.5)).clamp(-1, 1) + 0 * x,
    "cast": lambda x: (x * 8).long().float(),
    "cast by to": lambda x: (x * 8).to(torch.int32).to(x.dtype),
    "bucketize": lambda x: torch.bucketize(x, TABLE).float(),
    "lookup": lambda x: TABLE[(8 * x).round().long().clamp(0, 8)],
    "embedding": lambda x: functional.embedding((8 * x).round().long(), TABLE[:, None])[..., 0],
    "codebook": lambda x: CODES[(x[..., None] - CODES).abs().argmin(-1)],
    "one hot": lambda x: functional.one_hot((x[..., None] - CODES).abs().argmin(-1), 8).float() @ CODES,
    "no_grad": no_grad,
    "inference_mode": inference,
    "detach": lambda x: x.detach() * 2,
    "data": lambda x: x.data * 2,
    "decoy": lambda x: Decoy.apply(x),  # type: ignore[no-untyped-call, no-any-return]
    "decoy by detach": lambda x: (2 * x).detach() - x + x.detach(),
    "hook": hooked,
}


def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x).flatten(1).sum(), x, allow_unused=True)
    return torch.zeros_like(x) if g is None else g


class Step(nn.Module):
    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x).flatten(1)


@pytest.mark.parametrize("name", STEPS)
def test_a_surrogate_answers_as_the_network_to_the_bit_and_its_gradient_leads_up(name: str) -> None:
    F, x = Dirac(Step(STEPS[name])), X.clone()
    f = straight_through_surrogate(F).bind({})
    with global_rng_untouched():
        told = f(x.clone().requires_grad_())
    assert torch.equal(told.detach(), STEPS[name](x).flatten(1))
    assert steps_without_gradient(F, x), "it says which steps"
    g = gradient(f, x)
    assert g.isfinite().all()
    wider = STEPS[name]((x + 0.2).clamp(0, 1)).flatten(1) - STEPS[name]((x - 0.2).clamp(0, 1)).flatten(1)
    assert float((g.flatten(1).sum() * wider.sum()).sign()) == 1, "as the function does, over a longer way"


def test_a_smooth_network_needs_no_surrogate() -> None:
    assert steps_without_gradient(Dirac(Linear()), X) == []
    f = straight_through_surrogate(Dirac(Linear())).bind({})
    assert torch.equal(gradient(f, X), gradient(Linear(), X))


def test_the_choice_of_an_expert_hands_the_gradient_to_its_scores() -> None:
    def chosen(x: Tensor) -> Tensor:
        scores = torch.stack([x.flatten(1) @ W, 0.1 - x.flatten(1) @ W], 1)
        answers = torch.stack([0 * scores, 1 + 0 * scores], 1)
        return answers[torch.arange(len(x)), scores.argmax(1)]

    F = Dirac(Step(chosen))
    g = gradient(straight_through_surrogate(F).bind({}), X).flatten(1)
    assert torch.cosine_similarity(g, -W[None], dim=1).min() > 0.99


class TwoClasses(nn.Module):
    """A margin of scale <w, x>."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        s = self.scale * x.flatten(1) @ W
        return torch.stack([-s / 2, s / 2], 1)


@pytest.mark.parametrize(("scale", "share"), [(1.0, 1.0), (0.5, 0.75), (0.0, 0.0), (1.5, 0.75), (-1.0, 0.0)])
@pytest.mark.parametrize("shifts", [1, 3])
def test_the_explained_share_of_a_linear_network_is_the_closed_form(scale: float, share: float, shifts: int) -> None:
    """1 - (1 - scale)^2 for a gradient of `scale` times the true one, and at least 0."""
    F, seen, y = Dirac(TwoClasses()), Dirac(TwoClasses(scale)), torch.zeros_like(Y)
    for norm in NORMS.values():
        ends = random_ends(X, IDS, 0.05, norm, seed=0)
        found = explained_share(F, seen, X, y, ends, shifts=shifts, width=0.01)
        assert torch.allclose(found, torch.full_like(found, share), atol=1e-3)
        assert all(float(norm.norm(end - X).max()) <= 0.05 + 1e-6 for end in ends)


def test_a_network_that_answers_alike_everywhere_explains_nothing() -> None:
    flat = Dirac(TwoClasses(0.0))
    assert explained_share(flat, flat, X, Y * 0, [X + 0.1]).isnan().all()


def test_whose_gradient_is_followed() -> None:
    def chosen(module: nn.Module) -> str:
        from graddiv.evaluation.models import network_of, with_gradients

        F = with_gradients(network_of(module, X).F)
        return follow(F, X, Y, epsilon=0.1, geometry=LINF, seed=0).name

    assert chosen(Linear()) == OWN
    assert chosen(Noisy(Linear())) == OWN
    assert "straight-through" in chosen(nn.Sequential(Rounded(), Linear()))
    assert "straight-through" in chosen(Blind())


def test_a_smoothed_network_has_the_gradient_of_the_mean() -> None:
    F = Smoothed(Dirac(Shattered()), 0.05)
    true = gradient(Linear(), X)
    one, mean = gradient(Shattered(), X), torch.stack([gradient(f, X) for f in F.sample(300, 0)]).mean(0)
    cosines = [torch.cosine_similarity(g.flatten(1), true.flatten(1), dim=1).mean() for g in (one, mean)]
    assert cosines[0] < 0.3 < 0.5 < cosines[1]


def record(of: str, along: float, across: float) -> ExplainedRecord:
    arrays = {"ids": np.arange(90), "labels": np.zeros(90, int)}
    arrays |= {"along": np.full(90, along, np.float32), "across": np.full(90, across, np.float32)}
    about = {"of": of, "images": "", "norm": "Linf", "epsilon": 0.1, "shifts": 1, "target": "t", "parameters": ""}
    about |= {"examples": 90, "data": {"name": "d", "split": "s", "sha256": ""}, "n_ensemble": 5, "seed": 0, "batch": 9}
    return ExplainedRecord.made(about, arrays, "here")


def test_the_verdict_on_the_explained_share() -> None:
    def verdict(*records: ExplainedRecord, accuracy: float = 0.5) -> str:
        return explanation(records, accuracy, 0.05)[0]

    own, wrong = record(OWN, 0.99, 0.95), record(OWN, 0.99, 0.5)
    assert verdict(own) == "pass"
    assert verdict(wrong) == "fail", "right where the attack goes, wrong elsewhere"
    assert verdict(record(OWN, 0.5, 0.99)) == "fail"
    assert verdict(wrong, record("surrogate", 0.9, 0.85)) == "warn"
    assert verdict(wrong, record("surrogate", 0.9, 0.5)) == "fail"
    assert verdict(wrong, accuracy=0.0) == "warn", "nothing is left to doubt"
    assert verdict(record(OWN, np.nan, np.nan)) == "not enough evidence"


def target() -> Target:
    return replace(Target.of(Linear(), X, Y, n_ensemble=5), kept_images=len(X))


def test_a_race_leaves_what_is_broken_and_changes_no_number() -> None:
    here, epsilon = target(), float(margin_radii(X, Y).median())
    cell = Cell(PGD(m=5), "fixed", 1, epsilon, 0)
    [alone] = IN_MEMORY.run([attack_job(here, cell)])
    [first, again] = race(here, [cell, replace(cell, attack=PGD(m=6))], X.numpy(), IN_MEMORY)
    assert np.array_equal(first.correct, alone.correct), "from clean images, it is the attack itself"
    assert np.allclose(first.images, alone.images)
    broken = ~first.correct
    assert 0 < broken.sum() < len(X)
    assert (again.cost_backwards[broken] == 0).all()
    assert (again.cost_backwards[~broken] > 0).all()
    assert np.array_equal(again.images[broken], first.images[broken])
    assert np.array_equal(again.correct, alone.correct), "a linear network is broken where it can be"
    assert np.abs(again.images - X.numpy()).max() <= epsilon + 1e-6


def test_a_race_keeps_the_worse_image() -> None:
    """A weak attack after a strong one changes nothing."""
    here, epsilon = target(), 0.9 * float(margin_radii(X, Y).min())
    strong, weak = (Cell(attack, "fixed", 1, epsilon, 0) for attack in (PGD(m=10), PGD(m=1, alpha=0.01)))
    first, second = race(here, [strong, weak], X.numpy(), IN_MEMORY)
    assert first.correct.all()
    assert np.array_equal(first.images, second.images)
    other = raced_job(here, weak, X.numpy())
    assert other.file != raced_job(here, weak, first.images).file, "what it goes on from is part of its name"


def test_substitutes_learn_the_answers() -> None:
    F = Dirac(Linear())
    with no_type_checks(), global_rng_untouched():  # beartype draws from Python's generator
        learned = substitutes(F, [X], radius=0.1, steps=80)
    near = (X + 0.05).clamp(0, 1)
    assert (predict(learned, near, n=3).label == predict(F, near).label).float().mean() > 0.9
    assert learned.support() is not None


def test_queries_contradict_beyond_chance_alone() -> None:
    from graddiv.evaluation.behaviours import BEHAVIOURS

    [clean] = IN_MEMORY.run([attack_job(target(), Cell(None, "fixed", 1, 0.0, 0))])

    def verdict(lost: int) -> str:
        before, after = np.ones(100, bool), np.arange(100) >= lost
        last = _judged(clean, after)
        groups = {"before_blind": [before, before], "families": {"transfer": [last], "query": [last]}}
        return BEHAVIOURS["gradient_free"](Evidence(BUDGET, groups)).verdict

    assert [verdict(lost) for lost in (0, 1, 3, 5, 20)] == ["pass", "warn", "warn", "fail", "fail"]


def _judged(clean, correct: np.ndarray):  # type: ignore[no-untyped-def]
    b = len(correct)
    costs = {f"cost_{name}": np.full(b, 10) for name in ("forwards", "backwards", "draws")}
    with no_type_checks():  # its other arrays are shorter
        return replace(clean, examples=b, correct=correct, correct_again=correct, **costs)
