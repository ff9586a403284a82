import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graddiv import GradDiv
from graddiv.attacks import EOT, PGD
from graddiv.networks import GaussianNetwork, RandomizedNetwork, adp_diversity
from graddiv.networks.defense import Minibatch
from graddiv.objective import Objective
from graddiv.seeding import fold, uniform
from graddiv.training import objective_of
from tests.training.helpers import METHODS, random_data, tiny

STEP = 5


def setting(method: str, *overrides: str, data: str = "mnist-mini") -> tuple[Objective, Tensor, Tensor, Tensor]:
    experiment, examples = tiny(f"{data}/{method}", *overrides), random_data(data, 40)
    F = experiment.build(examples).train()
    x, y = examples.batch(slice(0, 6))
    return objective_of(F, experiment, len(examples)), x, y, examples.ids[:6]


def drawn(F: RandomizedNetwork, ids: Tensor) -> Tensor:
    return F.bind(F.draw(fold(0, "loss", STEP), ids))


def attacked(objective: Objective, x: Tensor, y: Tensor) -> Tensor:
    assert objective.adversary is not None
    pgd = PGD(m=objective.adversary.m, alpha=objective.adversary.alpha)
    return pgd(EOT(objective.trained, 1, seed=fold(0, "adversary", STEP)), x, y, objective.adversary.epsilon)


@pytest.mark.parametrize("method", METHODS)
def test_the_parts_add_up_and_reach_every_parameter(method: str) -> None:
    objective, x, y, ids = setting(method)
    loss = objective(x, y, step=STEP, ids=ids)
    parts = objective.parts
    w = objective.adversary.clean_weight if objective.adversary is not None else 1.0
    clean, adversarial = parts.get("clean", torch.zeros(())), parts.get("adversarial", torch.zeros(()))
    regularization = sum(part for name, part in parts.items() if name not in ("loss", "clean", "adversarial"))
    assert torch.allclose(loss, w * clean + (1 - w) * adversarial + regularization)
    assert ("clean" in parts, "adversarial" in parts) == (w > 0, w < 1)
    assert ("graddiv" in parts) == (method.endswith("graddiv") or method == "gal")
    assert ("kl" in parts) == method.startswith("adv-bnn")
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in objective.F.parameters())


def test_adversarial_training_is_cross_entropy_at_the_attacked_image() -> None:
    objective, x, y, ids = setting("adv-train")
    x_adv = attacked(objective, x, y)
    assert (x_adv - x).abs().max() > 0.01
    assert torch.allclose(objective(x, y, step=STEP, ids=ids), cross_entropy(objective.F.module(x_adv), y))


def test_adv_bnn_adds_its_share_of_the_kl() -> None:
    objective, x, y, ids = setting("adv-bnn")
    assert isinstance(objective.F, GaussianNetwork)
    expected = cross_entropy(drawn(objective.F, ids)(attacked(objective, x, y)), y) + 0.02 / 40 * objective.F.kl()
    assert torch.allclose(objective(x, y, step=STEP, ids=ids), expected)


def test_pni_weighs_both_halves_seen_by_one_model() -> None:
    objective, x, y, ids = setting("pni")
    f = drawn(objective.F, ids)
    expected = 0.5 * cross_entropy(f(x), y) + 0.5 * cross_entropy(f(attacked(objective, x, y)), y)
    assert torch.allclose(objective(x, y, step=STEP, ids=ids), expected)


def test_rse_gives_each_example_its_own_noise() -> None:
    objective, x, y, ids = setting("rse")
    together = objective(x, y, step=STEP, ids=ids)
    alone = [objective(x[i : i + 1], y[i : i + 1], step=STEP, ids=ids[i : i + 1]) for i in range(6)]
    assert torch.allclose(together, torch.stack(alone).mean(), rtol=1e-5)


def test_mi_trains_a_deterministic_network_on_interpolations_of_neighbours() -> None:
    objective, x, y, ids = setting("mi")
    a = uniform(fold(0, "interpolation", STEP), ids, 2).float()
    expected = torch.zeros(())
    for half, z in enumerate((attacked(objective, x, y), x)):
        for i in range(6):
            j, share = i ^ 1, a[i, half]
            logits = objective.F.module((share * z[i] + (1 - share) * z[j])[None])
            terms = share * cross_entropy(logits, y[i : i + 1]) + (1 - share) * cross_entropy(logits, y[j : j + 1])
            expected = expected + 0.5 * terms / 6
    assert torch.allclose(objective(x, y, step=STEP, ids=ids), expected, rtol=1e-5)


def test_every_member_of_an_ensemble_learns_at_every_step() -> None:
    objective, x, y, ids = setting("ensemble")
    expected = torch.stack([cross_entropy(member(x), y) for member in objective.F.members]).mean()
    assert torch.allclose(objective(x, y, step=STEP, ids=ids), expected)


def test_gal_adds_noise_to_half_of_the_images() -> None:
    objective, x, y, ids = setting("gal", "graddiv=none")
    noisy = objective.rules._with_input_noise(Minibatch(x, y, ids, 3, 0.0))
    moved = (noisy != x).flatten(1).any(1)
    assert 0 < int(moved.sum()) < len(x)
    assert float((noisy - x)[moved].std()) == pytest.approx(0.045, rel=0.1)


def test_adp_subtracts_the_diversity_of_the_members() -> None:
    objective, x, y, ids = setting("adp")
    logits = torch.stack([member(x) for member in objective.F.members])
    plain = torch.stack([cross_entropy(z, y) for z in logits]).mean()
    expected = plain - adp_diversity(logits, y, 2.0, 0.5).mean() / 3
    assert torch.allclose(objective(x, y, step=STEP, ids=ids).double(), expected)


def test_dverge_begins_with_clean_images() -> None:
    objective, x, y, ids = setting("dverge", "ensemble.baseline=0.6")  # of 10 steps
    expected = torch.stack([cross_entropy(member(x), y) for member in objective.F.members]).mean()
    assert torch.allclose(objective(x, y, step=5, ids=ids), expected)
    assert not torch.allclose(objective(x, y, step=6, ids=ids), expected)


@pytest.mark.parametrize("at", ["clean", "adversarial"])
def test_where_the_gradients_are_compared(at: str) -> None:
    objective, x, y, ids = setting("adv-bnn+graddiv", f"graddiv.at={at}", "graddiv.lam=0.3")
    objective(x, y, step=STEP, ids=ids)
    place = attacked(objective, x, y) if at == "adversarial" else x
    R = GradDiv("kappa", 0.3, 2, seed=fold(0, "R"))(objective.F, place, y, step=STEP, ids=ids)
    assert torch.allclose(objective.parts["graddiv"], R)


def test_lambda_waits_and_grows_in_steps() -> None:
    objective, x, y, ids = setting("adv-bnn+graddiv", "graddiv.warmup=1", "graddiv.rampup=2", "graddiv.lam=0.3")
    lams = []
    for step in (0, 9, 10, 15, 20, 30, 99):  # ten steps an epoch
        objective(x, y, step=step, ids=ids)
        lams.append(objective.diversity.parts.lam / 0.3)
    assert lams == pytest.approx([0, 0, 0, 0.25, 0.5, 1, 1])


def test_batch_statistics_are_moved_by_the_loss_alone() -> None:
    """Neither the inner PGD nor R touches them: one step moves them once."""
    objective, x, y, ids = setting("adv-bnn+graddiv", data="stl10")
    counts = [b for name, b in objective.F.named_buffers() if name.endswith("num_batches_tracked")]
    objective(x, y, step=STEP, ids=ids)
    assert [int(count) for count in counts] == [1] * len(counts)
    assert len(counts) == 6
