import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from graddiv.attacks import PGD
from graddiv.evaluation import Target
from graddiv.evaluation.behaviours import SIGNIFICANCE, Evidence, checklist
from graddiv.evaluation.budget import BUDGETS, Budget
from graddiv.evaluation.inspection import BEHAVIOURS, Item
from graddiv.evaluation.run import Session
from graddiv.networks import bayesian
from graddiv.records import AttackRecord, flips
from graddiv.seeding import generator
from tests.fake_records import attack_record
from tests.helpers import convnet

TINY = Budget(
    n=3, m=6, queries=60, radii=(0.5, 1.0, 2.0), random_points=40, random_images=20, sweep_n=(1, 3, 6),
    sweep_m=(3, 6, 12), restarts=(1, 2),
)  # fmt: skip


def judged(name: str, **groups: list[AttackRecord]) -> Item:
    """What a check makes of these records."""
    return BEHAVIOURS[name](Evidence(BUDGETS["checklist"]["standard"], groups))


def record(
    right: float,
    label: str = "EOT-PGD",
    mode: str = "eot",
    b: int = 10_000,
    again: float | None = None,
    **settings: object,
) -> AttackRecord:
    """A record of this accuracy, with the same first examples right: two of them are nested."""
    found = {
        "correct": np.arange(b) < right * b,
        "correct_again": np.arange(b) < (right if again is None else again) * b,
    }
    return attack_record(label, b=b, found=found, **{"mode": mode, "n": 10, "m": 50, **settings})


def test_the_papers_own_table_fails_within_the_fixed_mode_only() -> None:
    single = [record(0.7130, "FGSM", "fixed"), record(0.70, "EOT^1-FGSM", "eot1"), record(0.69, "EOT-FGSM")]
    fixed, once, eot = record(0.7572, "PGD", "fixed"), record(0.65, "EOT^1-PGD", "eot1"), record(0.60, "EOT-PGD")

    def one_step(*iterative: AttackRecord) -> Item:
        return judged("one_step", one_step=single, iterative=[*iterative])

    item = one_step(fixed, once, eot)
    assert item.verdict == "warn"
    assert "71.3 % under FGSM" in item.sentence
    assert "75.7 % under PGD" in item.sentence
    assert one_step(record(0.70, "PGD", "fixed"), once, eot).verdict == "pass"
    assert one_step(fixed, once, record(0.75, "EOT-PGD")).verdict == "fail", "within EOT it counts"


def test_black_box_against_white_box() -> None:
    def verdict(blind: AttackRecord, *seeing: AttackRecord) -> str:
        return judged("black_box", black_box=[blind], iterative=[*seeing]).verdict

    assert verdict(record(0.9, "Square"), record(0.8)) == "pass"
    assert verdict(record(0.7, "Square"), record(0.8), record(0.9, "PGD")) == "fail"
    assert verdict(record(0.7998, "Square"), record(0.8)) == "not enough evidence", "two examples"
    lucky = record(0.5, "Square", again=0.9)
    assert verdict(lucky, record(0.8)) == "pass", "the winner is chosen on one ensemble and judged on another"


@pytest.mark.parametrize(("left", "verdict"), [(0.0, "pass"), (0.03, "warn"), (0.3, "fail")])
def test_unbounded_attacks(left: float, verdict: str) -> None:
    assert judged("unbounded", unbounded=[record(left)]).verdict == verdict


@pytest.mark.parametrize(("right", "verdict"), [(1.0, "pass"), (0.96, "warn"), (0.5, "fail")])
def test_random_search(right: float, verdict: str) -> None:
    item = judged("random_search", random=[record(right, "random search", b=100)])
    assert item.verdict == verdict
    assert item.evidence["images"] == 100, "it says how many"
    assert judged("random_search").verdict == "not enough evidence"


def test_distortion() -> None:
    def at(*accuracies: float) -> str:
        return judged("distortion", radii=[record(a, epsilon=0.1 * (i + 1)) for i, a in enumerate(accuracies)]).verdict

    assert at(0.9, 0.6, 0.2) == "pass"
    assert at(0.9, 0.5, 0.8) == "fail"
    assert at(0.9, 0.9, 0.9) == "fail"
    assert at(0.0, 0.0) == "not enough evidence"


def test_convergence() -> None:
    def at(*accuracies: float) -> str:
        return judged("more_models", n=[record(a, n=i) for i, a in enumerate(accuracies)]).verdict

    assert at(0.9, 0.6, 0.6) == "pass"
    assert at(0.9, 0.6, 0.57) == "warn"
    assert at(0.9, 0.6, 0.5) == "fail"
    assert at(0.9, 0.6, 0.5998) == "pass", "two flips are no fall"


def test_convergence_needs_a_small_bound() -> None:
    """90, 80, 75 % of 100 images: five flips are no fall beyond chance, but ten points are not excluded, either."""

    def at(*accuracies: float, b: int) -> Item:
        return judged("more_models", n=[record(a, b=b, n=i) for i, a in enumerate(accuracies)])

    assert at(0.9, 0.8, 0.75, b=100).verdict == "not enough evidence"
    assert at(0.9, 0.75, 0.75, b=100).verdict == "pass"
    assert at(0.9, 0.75, 0.75, b=30).verdict == "not enough evidence", "30 images without a flip leave 9.5 % open"
    evidence = at(0.9, 0.8, 0.75, b=100).evidence
    assert evidence["gain"] == pytest.approx(0.05)
    assert 0.05 < evidence["bound"] < 0.15


def test_where_too_few_examples_are_left_nothing_is_shown() -> None:
    """Seven flips, all to one side, happen by chance with p = 2 / 2^7 > 0.01; eight do not."""
    assert flips(np.ones(7, bool), np.zeros(7, bool)).p > SIGNIFICANCE > flips(np.ones(8, bool), np.zeros(8, bool)).p

    def verdicts(left: int, b: int = 100) -> list[str]:
        share = (left - 0.5) / b
        items = [
            judged("one_step", one_step=[record(0.5, "EOT-FGSM", b=b)], iterative=[record(share, b=b)]),
            judged("black_box", black_box=[record(0.5, "Square", b=b)], iterative=[record(share, b=b)]),
            judged("distortion", radii=[record(share, b=b, epsilon=e) for e in (0.1, 0.2)]),
            judged("more_models", n=[record(share, b=b, n=n) for n in (1, 2)]),
        ]
        return [item.verdict for item in items]

    assert verdicts(7) == ["not enough evidence"] * 4
    assert verdicts(8) == ["pass", "pass", "fail", "pass"]
    few, enough = (judged("unbounded", unbounded=[record(0.0, b=b)]).verdict for b in (7, 8))
    assert (few, enough) == ("not enough evidence", "pass")


def test_a_check_is_made_where_there_is_what_it_needs() -> None:
    evidence = Evidence(BUDGETS["checklist"]["standard"], {"unbounded": [record(0.0)], "n": []})
    assert list(evidence.judge()) == ["unbounded"]


def blobs(b: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes, each a bright quarter of the image, with noise."""
    y = torch.arange(b) % 4
    centers = torch.full((4, 1, 6, 6), 0.35, dtype=torch.float64)
    for label, (i, j) in enumerate(((0, 0), (0, 3), (3, 0), (3, 3))):
        centers[label, 0, i : i + 3, j : j + 3] = 0.65
    noise = 0.1 * torch.randn(b, 1, 6, 6, generator=generator(seed), dtype=torch.float64)
    return (centers[y] + noise).clamp(0, 1), y


def train(module: nn.Module, epsilon: float, steps: int) -> nn.Module:
    """Adversarial training, in short."""
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for step in range(steps):
        x, y = blobs(64, 100 + step)
        x = PGD(m=3, alpha=0.5)(module, x, y, epsilon * min(1.0, 2 * step / steps)) if epsilon else x
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval()


class Rounded(nn.Module):
    """Pixels rounded to a few levels: no gradient gets through, though the network is as weak as before."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.round(x * 8) / 8)


def verdicts(items: list[Item]) -> dict[str, str]:
    return {item.name: item.verdict for item in items}


@pytest.mark.slow
def test_an_adversarially_trained_network_passes(tmp_path: Path) -> None:
    F = bayesian(train(convnet(nn.ReLU), 0.1, 80), 0.01)
    x, y = blobs(60, 0)
    items = checklist(Target.of(F, x, y, n_ensemble=5), 0.12, Session(tmp_path), budget=TINY)
    said = verdicts(items)
    assert {said[name] for name in said if not name.startswith("more ")} == {"pass"}, [tuple(item) for item in items]
    assert set(said.values()) <= {"pass", "not enough evidence"}, "so few images leave a gain open"
    assert len(items) == 8
    written = json.loads((tmp_path / "checklist.json").read_text())
    assert [item["verdict"] for item in written["items"]] == [item.verdict for item in items]
    assert written["settings"]["queries"] == 60


@pytest.mark.parametrize("random", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_masked_gradients_are_found(random: bool) -> None:
    module = Rounded(train(convnet(), 0.0, 40))
    x, y = blobs(60, 0)
    target = Target.of(bayesian(module, 0.01) if random else module, x, y, n_ensemble=5)
    found = verdicts(checklist(target, 0.15, budget=TINY))
    assert found["black-box attacks are weaker than white-box ones"] == "fail"
    assert found["an unbounded attack reaches 100 %"] == "fail"
    assert found["success grows with epsilon"] == "fail"


def test_a_deterministic_network_has_no_number_of_models_to_grow() -> None:
    x, y = blobs(20, 0)
    items = checklist(Target.of(train(convnet(), 0.0, 5), x, y), 0.1, budget=TINY)
    assert "more models gain nothing" not in verdicts(items)
    assert len(items) == 7
