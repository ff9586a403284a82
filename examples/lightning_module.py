"""GradDiv in Lightning: the objective is a module, and its step is Lightning's global step.

pip install lightning
python examples/lightning_module.py
"""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graddiv import Adversary, GradDiv, Objective, bayesian
from graddiv.data import load


class AdvBNN(lightning.LightningModule):
    def __init__(self, module: nn.Module, examples: int) -> None:
        super().__init__()
        self.F = bayesian(module, prior_sigma=0.05)
        diversity = GradDiv("dpp", lam=0.3, warmup=50, rampup=100)
        self.objective = Objective(self.F, examples=examples, adversary=Adversary(0.1, m=3), diversity=diversity)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss: Tensor = self.objective(*batch, step=self.global_step)
        self.log_dict(self.objective.parts)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.F.predict(x).label == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.F.parameters(), lr=2e-3)


parser = argparse.ArgumentParser(description="GradDiv in Lightning.")
parser.add_argument("--digits", type=int, default=4500)
options = parser.parse_args()

x, y = load("mnist-mini").batch(range(options.digits))
test_x, test_y = load("mnist-mini", "test").batch(range(100))
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Softplus(), nn.Linear(64, 10))
model = AdvBNN(module, len(x))
loader = DataLoader(TensorDataset(x, y), 64, shuffle=True)
trainer.fit(model, loader, DataLoader(TensorDataset(test_x, test_y), 100))
print(f"accuracy of the ensemble {float(trainer.callback_metrics['accuracy']):.1%}")
