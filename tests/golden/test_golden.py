"""The core does what it did: a tiny training, attacks and a measurement beside numbers stored before.

Whatever moves a seed, an address of randomness, the order of operations or the judgement of an attack, moves these
numbers.  Where such a change is meant, say so in CHANGELOG.md and store the new ones:

    python -m tests.golden.test_golden

What must not move them is another processor, which rounds differently.  In the black of a digit max-pooling chooses
among equals, and rounding decides: so attacks see digits with a little noise and run in double precision.  Then
verdicts, counts and costs are equal, and floats agree to almost all that a record keeps.  Training starts its attack at
random, and in eight steps its parameters deviate by less than a hundredth of a step of Adam, where another seed makes
it several; the probe after each epoch looks at clean digits, and is good to a percent.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from graddiv.attacks import APGD, FGSM, PGD, Square
from graddiv.data import load
from graddiv.evaluation import Target, evaluate, predict
from graddiv.evaluation.jobs import concentration_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.networks import bayesian, mnist_cnn
from graddiv.recipes import recipe
from graddiv.runs import read_log
from graddiv.seeding import generator
from graddiv.training import train

STORED = Path(__file__).with_name("golden.npz")
Arrays = dict[str, np.ndarray]

LR = 2e-3
OVERRIDES = (
    *("data.examples=32", "network.width=0.03", "training.epochs=2", "training.batch=8", f"training.lr={LR}"),
    *("adversary.m=2", "graddiv.n=2", "graddiv.warmup=0.5", "graddiv.rampup=1", "training.decays=[1.5]"),
    *("adversary.random_start=true", "graddiv.at=adversarial"),
    *("adversary.epsilon=0.2", "adversary.alpha=0.4", "gaussian.alpha_kl=0.0016"),
)
ATTACKS = (FGSM(), PGD(m=3), APGD(m=4), Square(m=8))


def trained(directory: Path) -> Arrays:
    """Adv-BNN + GradDiv after eight steps: its parameters, and what the log says of each epoch."""
    F = train(recipe("mnist-mini/adv-bnn+graddiv", "paper", OVERRIDES), directory)
    epochs = [line for line in read_log(directory / "metrics.jsonl") if "loss" in line]
    curves = {
        f"epochs/{key}": np.array([line[key] for line in epochs])
        for key, value in epochs[0].items()
        if isinstance(value, float) and key != "images_per_second"
    }
    return curves | {f"theta/{name}": tensor.numpy() for name, tensor in F.state_dict().items()}


def evaluated() -> Arrays:
    """Four attacks in three modes on eight digits, in two batches and repeats; the concentration of the gradients.

    The network is not trained, but has large weights, so that attacks succeed, and is asked for its own clean answers.
    """
    F, x = bayesian(mnist_cnn(0.05, seed=3), 0.05), load("mnist-mini", "test").batch(range(8))[0].double()
    x = 0.8 * x + 0.2 * torch.rand(x.shape, generator=generator(0), dtype=x.dtype)
    with torch.no_grad():
        for weights in F.double().module.parameters():
            weights *= 3
    y = predict(F, x, seed=2).label
    attacks = evaluate(F, x, y, epsilon=0.1, attacks=ATTACKS, n=3, repeats=2, n_ensemble=5, seed=1, batch=5)
    (measured,) = IN_MEMORY.run([concentration_job(Target.of(F, x, y, seed=1, batch=5), n=4)])
    found = {f"attacks/{name}": np.stack([record.arrays[name] for record in attacks]) for name in attacks[0].arrays}
    found |= {f"concentration/{name}": values for name, values in measured.arrays.items()}
    found["attacks/images"] = found["attacks/images"].mean((2, 4))  # the mean of each row of pixels
    return found | {"attacks/labels_of_rows": np.array([record.label for record in attacks])}


def stored(*beginnings: str) -> Arrays:
    with np.load(STORED) as arrays:
        return {name: arrays[name] for name in arrays if name.startswith(beginnings)}


def test_training_ends_where_it_did(tmp_path: Path) -> None:
    found, expected = trained(tmp_path), stored("theta/", "epochs/")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if name.startswith("epochs/"):
            np.testing.assert_allclose(found[name], values, rtol=1e-2, atol=5e-3, err_msg=name)
        else:
            assert np.abs(found[name] - values).mean() < 0.01 * LR, name


def test_attacks_and_measurements_find_what_they_found() -> None:
    found, expected = evaluated(), stored("attacks/", "concentration/")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], values, err_msg=name)


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        np.savez_compressed(STORED, **trained(Path(directory)), **evaluated())
