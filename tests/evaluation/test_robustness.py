from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graddiv.attacks import APGD, FGSM, PGD, Square
from graddiv.attacks.suites import ATTACKS, SUITES
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell, Target, attack_all, attack_cell, cells, evaluate, predict, suite
from graddiv.evaluation.run import Session
from graddiv.evaluation.target import KEPT_IMAGES
from graddiv.geometry import L2
from graddiv.networks import randomize
from graddiv.records import PAPER_ROWS, AttackRecord, read_all, table, total
from graddiv.seeding import fold
from tests.evaluation.common import assert_same, contents, small_cells, small_target
from tests.helpers import (
    DETERMINISTIC,
    KINDS,
    STOCHASTIC,
    convnet,
    global_rng_untouched,
    images,
    labels,
    network,
    no_type_checks,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_every_network_can_be_evaluated(kind: str) -> None:
    F = network(kind)
    with no_type_checks(), global_rng_untouched():  # type checks themselves draw random numbers
        records = evaluate(F, images(5), labels(5), epsilon=0.1, attacks=[FGSM(), PGD(m=2)], n=2, n_ensemble=3, batch=2)
    modes = 1 if kind in DETERMINISTIC else 3
    assert [r.label for r in records] == [
        "clean",
        *["FGSM", "EOT^1-FGSM", "EOT-FGSM"][:modes],
        *["PGD", "EOT^1-PGD", "EOT-PGD"][:modes],
    ]
    for record in records:
        assert record.correct.shape == (5,)
        assert record.right.shape == (5, 1 if kind in DETERMINISTIC else 3)
        assert (record.distance <= 0.1 + 1e-6).all()
        assert record.images.shape == (5, 1, 6, 6)


def test_a_foreign_module_of_the_users() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = convnet()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x + 0.1 * torch.randn_like(x))

    records = evaluate(randomize(Noisy()), images(4), labels(4), epsilon=0.1, attacks=["pgd"], n=2, n_ensemble=2)
    assert len(table(records)) == 4 + 3  # clean, three modes, three Totals


def test_success_is_judged_by_fresh_models_after_the_attack() -> None:
    target = small_target(n_ensemble=5)
    cell = Cell(PGD(m=3), "eot", 2, 0.2, 1)
    record = attack_cell(target, cell)
    x, y, ids = target.examples(slice(0, 10))
    attack = PGD(m=3, seed=fold(0, "attack", 1))
    x_adv = attack(cell.view(target.F, 0), x, y, 0.2, ids=ids)
    for which, suffix in enumerate(["", "_again"]):
        said = predict(target.F, x_adv, n=5, seed=fold(0, "ensemble", 1, which))
        np.testing.assert_array_equal(getattr(record, f"correct{suffix}"), (said.label == y).numpy())
    np.testing.assert_array_equal(record.images, x_adv.float().numpy())
    assert (record.margin < 0).tolist() == record.correct.tolist()


def test_the_order_of_batches_changes_no_verdict() -> None:
    a, b = (attack_all(small_target(batch=size), small_cells()[:3]) for size in (3, 10))
    for first, second in zip(a, b, strict=True):
        np.testing.assert_array_equal(first.right, second.right)
        np.testing.assert_allclose(first.images, second.images, atol=1e-6)


def test_a_loader_gives_what_tensors_give() -> None:
    x, y = images(7), labels(7)
    F = network("bayesian")
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    how = {"epsilon": 0.1, "attacks": [FGSM()], "n": 2, "n_ensemble": 2, "batch": 4}
    assert_same(evaluate(F, loader, **how), evaluate(F, x, y, **how))


def test_what_examples_may_not_be() -> None:
    F, x, y = network("bayesian"), images(4), labels(4)
    with pytest.raises(GradDivError, match="y is missing"):
        evaluate(F, x, epsilon=0.1)
    with pytest.raises(GradDivError, match="leave y out"):
        evaluate(F, TensorDataset(x, y), y, epsilon=0.1)
    with pytest.raises(GradDivError, match="x holds no images"):
        evaluate(F, [], epsilon=0.1)
    with no_type_checks(), pytest.raises(GradDivError, match=r"x lies in .* divide x by 255"):
        evaluate(F, (255 * x).byte(), y, epsilon=0.1)
    with pytest.raises(GradDivError, match="there are 0 images"):
        evaluate(F, x[:0], y[:0], epsilon=0.1, attacks=[FGSM()])


def test_costs_are_those_of_one_example() -> None:
    for batch in (3, 10):
        record = attack_cell(small_target(batch=batch), Cell(PGD(m=4), "eot", 5, 0.1, 0))
        for name in ("forwards", "backwards", "draws"):
            assert getattr(record, f"cost_{name}").tolist() == [20] * 10


def test_images_are_kept_of_the_first_examples_only(tmp_path: Path) -> None:
    record = attack_cell(small_target(b=KEPT_IMAGES + 5, batch=4), Cell(FGSM(), "fixed", 1, 0.1, 0), Session(tmp_path))
    assert record.images.shape[0] == KEPT_IMAGES
    assert record.correct.shape == (KEPT_IMAGES + 5,)


def test_records_on_disk_are_those_in_memory(tmp_path: Path) -> None:
    target, wanted = small_target(), small_cells()[:3]
    on_disk, in_memory = attack_all(target, wanted, Session(tmp_path)), attack_all(target, wanted)
    assert_same(on_disk, in_memory)
    assert_same(sorted(read_all(tmp_path), key=str), sorted(on_disk, key=str))


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"seed": 1}, "attack.seed"),
        ({"n_ensemble": 4}, "n_ensemble"),
        ({"batch": 5}, "batch"),
        ({"b": 9}, "examples"),
        ({"kind": "pni"}, "parameters"),
    ],
)
def test_a_different_evaluation_in_the_same_directory_is_refused(
    tmp_path: Path, changed: dict[str, object], key: str
) -> None:
    cell = Cell(FGSM(), "eot", 2, 0.1, 0)
    attack_cell(small_target(), cell, Session(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(GradDivError, match=f"was made with {key} = "):
        attack_cell(small_target(**changed), cell, Session(tmp_path))  # type: ignore[arg-type]
    assert contents(tmp_path) == before


def test_file_names_tell_cells_apart() -> None:
    attacks = [
        *(each.attack for each in ATTACKS.values()), PGD(m=10), PGD(m=10, restarts=2), PGD(m=10, alpha=0.1),
        PGD(m=10, geometry=L2()), PGD(m=10, random_start=True), APGD(m=10, objective="margin"),
        Square(m=10, p_init=0.3),
    ]  # fmt: skip
    found = [Cell(a, mode, n, e, r) for a in attacks for mode, n in (("fixed", 1), ("eot1", 1), ("eot", 2))
             for e in (0.1, 8 / 255) for r in (0, 1)]  # fmt: skip
    assert len({cell.file_name for cell in found}) == len(found)
    assert Cell(PGD(), "eot", 20, 0.3, 0).file_name == "pgd-eot20-m50-eps0.3-r0.record"
    assert Cell(APGD(objective="dlr"), "fixed", 1, 0.3, 0).file_name == "apgd-dlr-fixed-m100-eps0.3-r0.record"
    assert " " not in "".join(cell.file_name for cell in found)


def test_ways_of_seeing_have_one_name_each() -> None:
    assert Cell(FGSM(), "eot", 1, 0.1, 0) == Cell(FGSM(), "eot1", 7, 0.1, 0)
    assert [cell.mode for cell in cells([FGSM()], [0.1], n=1)] == ["fixed", "fixed", "eot1"]
    assert [cell.mode for cell in cells([FGSM()], [0.1], n=5, random=False)] == ["fixed", "fixed"]


def test_the_paper_suite_has_the_papers_rows() -> None:
    F = network("bayesian")
    labels_of = {cell.label(F) for cell in cells(suite("paper"), [0.1], n=10)}
    assert set(PAPER_ROWS) <= labels_of
    assert labels_of - set(PAPER_ROWS) == {"clean", "EOT-FAB", "EOT-B&B", "Square", "EOT^1-Square", "EOT-Square"}


def test_suites() -> None:
    assert {name: [(a.name, a.iterations) for a in suite(name)] for name in SUITES} == {
        "paper": [("FGSM", 1), ("PGD", 50), ("APGD-CE", 100), ("APGD-DLR", 100), ("FAB", 100), ("B&B", 1000),
                  ("Square", 5000)],
        "published": [("FGSM", 1), ("PGD", 50), ("APGD-CE", 100), ("APGD-DLR", 100), ("FAB", 100), ("B&B", 1000),
                      ("Square", 5000)],
        "quick": [("FGSM", 1), ("PGD", 20), ("APGD-CE", 20), ("APGD-DLR", 20), ("FAB", 10), ("B&B", 50),
                  ("Square", 200)],
        "demo": [("FGSM", 1), ("PGD", 20), ("APGD-CE", 20), ("Square", 30)],
        "strong": [("SPGD", 100), ("SPGD-ce", 100)],
    }  # fmt: skip
    rules = {a.name: getattr(a, "return_rule", None) for a in suite("published")}
    assert [name for name, rule in rules.items() if rule == "reference"] == ["APGD-CE", "APGD-DLR", "FAB", "B&B"]
    assert [a.iterations for a in suite("demo", ["fab"])] == [100], "no part of the demo, so as it is registered"
    assert [(a.name, a.iterations) for a in suite("quick", ["pgd", "fgsm"], m=7)] == [("PGD", 7), ("FGSM", 1)]
    with pytest.raises(GradDivError, match="unknown attack 'pdg', did you mean 'pgd'"):
        suite("quick", ["pdg"])
    with pytest.raises(GradDivError, match="unknown suite"):
        suite("all")


def test_total_is_the_and_over_attacks_of_the_same_repeat() -> None:
    records = attack_all(small_target(b=30, batch=30), small_cells())
    by_hand = []
    for repeat in range(2):
        attacks = [r for r in records if r.repeat == repeat and r.label != "clean"]
        for flags in ([r.correct for r in attacks], [r.correct_again for r in attacks]):
            by_hand.append(np.array([all(each[i] for each in flags) for i in range(30)]).mean())
        assert [either.mean() for either in total(attacks)] == by_hand[-2:]
    row = next(row for row in table(records) if row.label == "Total (all attacks)")
    assert row.accuracy.mean == pytest.approx(np.mean(by_hand))
    assert row.accuracy.std == pytest.approx(np.std(by_hand, ddof=1))


@pytest.mark.parametrize("kind", STOCHASTIC)
@pytest.mark.slow
def test_networks_are_left_as_they_were(kind: str) -> None:
    F = network(kind, batch_norm=True)
    F.train()
    for module in F.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    before = {name: tensor.clone() for name, tensor in F.state_dict().items()}
    modes = [m.training for m in F.modules()]
    evaluate(F, images(3), labels(3), epsilon=0.1, attacks=[FGSM()], n=2, n_ensemble=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in F.state_dict().items())
    assert modes == [m.training for m in F.modules()]


def test_a_plain_module_is_deterministic() -> None:
    records = evaluate(convnet(), images(4), labels(4), epsilon=0.1, attacks=[FGSM()])
    assert [record.label for record in records] == ["clean", "FGSM"]
    np.testing.assert_array_equal(records[0].correct, records[0].correct_again)


def test_facts_of_the_target_are_in_its_records() -> None:
    x, y = images(2), labels(2)
    target = Target.of(network("bayesian"), x, y, n_ensemble=2, facts={"method": "adv-bnn", "lam": 0.1})
    record: AttackRecord = attack_cell(target, Cell(None, "fixed", 1, 0.0, 0))
    assert (record.method, record.lam) == ("adv-bnn", 0.1)
