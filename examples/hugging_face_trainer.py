"""GradDiv in Hugging Face's Trainer: compute_loss calls the objective with the Trainer's global step.

pip install transformers accelerate
python examples/hugging_face_trainer.py
"""

import argparse
import tempfile

from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from graddiv import Adversary, GradDiv, Objective, bayesian
from graddiv.data import load


class GradDivTrainer(Trainer):
    """The model is an Objective; gradient accumulation would repeat draws within a step, so it stays at 1."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *others: object, **options: object) -> Tensor:
        loss: Tensor = model(inputs["x"], inputs["labels"], step=self.state.global_step)
        return loss


parser = argparse.ArgumentParser(description="GradDiv in Hugging Face's Trainer.")
parser.add_argument("--digits", type=int, default=4500)
options = parser.parse_args()

x, y = load("mnist-mini").batch(range(options.digits))
module = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Softplus(), nn.Linear(64, 10))
F = bayesian(module, prior_sigma=0.05)
diversity = GradDiv("dpp", lam=0.3, warmup=50, rampup=100)
objective = Objective(F, examples=len(x), adversary=Adversary(0.1, m=3), diversity=diversity)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=3, per_device_train_batch_size=64, learning_rate=2e-3, report_to=[], use_cpu=True,
        save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    digits = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    GradDivTrainer(model=objective, args=arguments, train_dataset=digits).train()
test_x, test_y = load("mnist-mini", "test").batch(range(100))
print(f"accuracy of the ensemble {(F.predict(test_x).label == test_y).float().mean():.1%}")
