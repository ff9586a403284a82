"""The Total alone: who leaves, when, and that the models that judge have no part in it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graddiv.attacks import FAB, FGSM, PGD, Attack, Square
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell, Target, attack_all, attack_until_fooled, cells, evaluate_total, predict
from graddiv.evaluation.robustness import LEVEL, sure_enough, sureness, total_job
from graddiv.evaluation.run import Session
from graddiv.networks import bayesian, randomize
from graddiv.networks import prediction as prediction_module
from graddiv.records import TotalRecord, cross_fitted_total, read_all
from graddiv.seeding import fold, generator, isolated
from tests.evaluation.common import assert_same, contents, small_target
from tests.helpers import convnet, images, labels, network, with_dropout

ATTACKS = [FGSM(), PGD(m=5)]


def toy_target(b: int = 60, batch: int = 40) -> Target:
    """A small random network and the labels it gives: an attack at epsilon 0.06 fools about half of the images."""
    with isolated(0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 4)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter *= 3
    F, x = bayesian(module, 0.02), images(b)
    return Target.of(F, x, predict(F, x, seed=3).label, n_ensemble=10, batch=batch)


def wanted_of(target: Target, epsilon: float = 0.06) -> list[Cell]:
    return cells(ATTACKS, epsilon, n=3, random=target.random)


def two_classes(d: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of two classes whose difference against the label is d: n b, and the labels."""
    return torch.stack([(1 - d) / 2, (1 + d) / 2], 2), torch.zeros(d.shape[1], dtype=torch.int64)


def test_sureness_by_hand() -> None:
    d = torch.tensor([[0.1, 0.5, -0.5], [0.3, 0.5, -0.5]], dtype=torch.float64)
    t = sureness(*two_classes(d), 8)
    expected = 0.2 / (0.2 / 2**0.5 * (1 / 2 + 1 / 8) ** 0.5)
    assert t.tolist() == pytest.approx([expected, np.inf, -np.inf])
    p = torch.tensor([[[0.4, 0.5, 0.1]], [[0.4, 0.1, 0.5]], [[0.3, 0.6, 0.1]]], dtype=torch.float64)
    rival_alone = p[..., :2] - p[..., :2].mean(2, keepdim=True) + 0.5  # d is p(1) - p(0), whatever the third class
    y = torch.zeros(1, dtype=torch.int64)
    assert sureness(p, y, 5).item() == pytest.approx(sureness(rival_alone, y, 5).item())


@pytest.mark.parametrize("mean", [0.0, 0.05, 0.1, 0.15, 0.3])
def test_a_fresh_ensemble_seldom_saves_an_image_that_left(mean: float) -> None:
    b, size = 20_000, 20
    draws = mean + 0.2 * torch.randn(3 * size, b, generator=generator(0), dtype=torch.float64)
    left = sureness(*two_classes(draws[: 2 * size]), size) > sure_enough(2 * size, looks=1)
    saved = draws[2 * size :].mean(0) <= 0
    assert (left & saved).double().mean() <= LEVEL
    if mean == 0.3:
        assert left.double().mean() > 0.95
    if mean == 0:
        assert left.double().mean() < 0.05


@pytest.mark.slow
def test_what_is_judged_is_the_image_of_the_attack_that_was_chosen() -> None:
    target = toy_target()
    rows = attack_all(target, wanted_of(target))
    (found,) = attack_until_fooled(target, wanted_of(target))
    by_label = {row.label: row for row in rows}
    assert 10 < found.ended.sum() < 50
    assert len(set(found.chosen)) > 2
    for i, number in enumerate(found.chosen):
        row = by_label[found.labels_of_attacks[number]]
        for name in ("margin", "margin_again", "distance"):
            assert getattr(found, name)[i] == pytest.approx(getattr(row, name)[i], abs=1e-5)
    assert not found.correct[found.ended].any()
    assert not found.correct_again[found.ended].any()


def test_the_total_is_that_of_the_whole_table() -> None:
    target = toy_target(200, batch=200)
    rows = [row for row in attack_all(target, wanted_of(target)) if not row.is_clean]
    (found,) = attack_until_fooled(target, wanted_of(target))
    whole = np.mean(cross_fitted_total(rows))
    assert 0.2 < whole < 0.8
    assert abs(np.mean(found.verdicts) - whole) <= 0.01
    assert found.share_of_passes < 0.8


@pytest.mark.slow
def test_an_image_that_left_costs_nothing_more_and_others_what_the_table_says() -> None:
    target = toy_target()
    by_label = {row.label: row for row in attack_all(target, wanted_of(target))}
    (found,) = attack_until_fooled(target, wanted_of(target))
    assert found.labels_of_attacks[0] == "clean"
    assert found.seen[:, 0].all()
    for number, label in enumerate(found.labels_of_attacks):
        there = ~(found.ended & (found.chosen < number))
        np.testing.assert_array_equal(found.seen[:, number], there)
        for name in ("cost_forwards", "cost_backwards", "cost_draws"):
            spent, of_table = getattr(found, name)[:, number], getattr(by_label[label], name)
            np.testing.assert_array_equal(spent, np.where(there, of_table, 0))
        assert set(found.cost_choice[there, number]) == {2 * target.n_ensemble}
    everything = sum(row.cost_forwards + row.cost_backwards + 2 * target.n_ensemble for row in by_label.values()).sum()
    assert found.share_of_passes == pytest.approx(found.passes.sum() / everything)
    assert found.share_of_passes < 0.9


def test_models_that_judge_are_asked_once_all_attacks_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    target, asked = small_target(batch=10), []
    models_of = prediction_module.models_of

    def spy(F: object, n: int, seed: int) -> object:
        asked.append(seed)
        return models_of(F, n, seed)  # type: ignore[arg-type]

    for module in ("graddiv.evaluation.robustness", "graddiv.networks.prediction"):
        monkeypatch.setattr(f"{module}.models_of", spy)
    (found,) = attack_until_fooled(target, wanted_of(target, 0.1))
    choosing, judging = ([fold(0, role, 0, i) for i in range(2)] for role in ("choice", "ensemble"))
    assert asked == choosing * len(found.attacks) + judging


def test_a_deterministic_network_loses_an_image_at_the_first_success() -> None:
    target = Target.of(convnet(), images(30), labels(30), batch=7)
    rows = attack_all(target, wanted_of(target))
    (found,) = attack_until_fooled(target, wanted_of(target))
    survived = np.logical_and.reduce([row.correct for row in rows])
    np.testing.assert_array_equal(found.correct, survived)
    np.testing.assert_array_equal(found.ended, ~survived)


@pytest.mark.slow
def test_batches_of_a_network_that_is_not_pointwise_stay_whole() -> None:
    target = Target.of(randomize(with_dropout(convnet())), images(12), labels(12), n_ensemble=20, batch=6)
    (found,) = attack_until_fooled(target, cells([FGSM()], 0.1, n=2))
    assert not target.F.pointwise
    for rows in (slice(0, 6), slice(6, 12)):
        seen = found.seen[rows]
        assert (seen.all(0) | ~seen.any(0)).all()
    assert found.ended.any()


@pytest.mark.slow
def test_an_evaluation_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, runs = small_target(), []
    attack = Attack.__call__

    def dies_in_the_second_batch(self: Attack, *arguments: object, **options: object) -> Tensor:
        runs.append(self.name)
        if len(runs) == 1 + 2 * 3:
            raise KeyboardInterrupt
        return attack(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Attack, "__call__", dies_in_the_second_batch)
    wanted = wanted_of(target, 0.001)  # nobody leaves but those who are wrong already
    with pytest.raises(KeyboardInterrupt):
        attack_until_fooled(target, wanted, Session(tmp_path))
    assert [path.name for path in tmp_path.rglob("0*")] == ["00000"]
    first = next(tmp_path.rglob("00000")).read_bytes()
    monkeypatch.undo()
    (found,) = attack_until_fooled(target, wanted, Session(tmp_path))
    assert_same([found], attack_until_fooled(target, wanted))
    assert first not in contents(tmp_path).values()
    (stored,) = read_all(tmp_path)
    assert isinstance(stored, TotalRecord)
    monkeypatch.setattr(Attack, "__call__", dies_in_the_second_batch)
    attack_until_fooled(target, wanted, Session(tmp_path))
    assert len(runs) == 7


def test_the_papers_total_leaves_out_the_rows_that_the_paper_does() -> None:
    F, x, y = network("bayesian"), images(3), labels(3)
    few = {"epsilon": 0.1, "n": 2, "n_ensemble": 2, "paper_rows": True}
    (found,) = evaluate_total(F, x, y, attacks=[FGSM(), FAB(m=1), Square(m=2)], **few)
    assert found.labels_of_attacks == ["clean", "FGSM", "EOT^1-FGSM", "EOT-FGSM", "FAB", "EOT^1-FAB"]
    with pytest.raises(GradDivError, match="none of the attacks is among the paper's rows"):
        evaluate_total(F, x, y, attacks=[Square(m=2)], **few)


def test_one_total_for_each_epsilon_and_repeat(tmp_path: Path) -> None:
    F, x, y = network("bayesian"), images(5), labels(5)
    found = evaluate_total(
        F, x, y, epsilon=[0.1, 0.2], attacks=["fgsm"], n=2, repeats=2, n_ensemble=2, directory=tmp_path
    )
    assert [(r.epsilon, r.repeat) for r in found] == [(0.1, 0), (0.2, 0), (0.1, 1), (0.2, 1)]
    assert found[0].labels_of_attacks == ["clean", "FGSM", "EOT^1-FGSM", "EOT-FGSM"]
    with pytest.raises(GradDivError, match="one epsilon and one repeat"):
        total_job(Target.of(F, x, y), cells([FGSM()], [0.1, 0.2]))
