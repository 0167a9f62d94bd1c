"""TASER in PyTorch Lightning, as a callback: the LightningModule stays as it is.

    pip install lightning
    python examples/lightning_callback.py

Lightning has no hook between the loss and its backward pass that could add a term, so the callback
wraps `training_step` when training begins and takes the wrapper away when it ends. Batches are
(x, y). Trains on scikit-learn's digits without and with TASER, and prints accuracy and the variance
of the Stein residual on test images. taser does not depend on Lightning: `TaserTerm` does the work.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import taser


class TaserTerm:
    """A training step whose loss has λ times the Stein penalty of the batch more."""

    def __init__(self, score: Callable[[Tensor], Tensor], lam: float = 1e-4) -> None:
        self.score, self.lam = score, lam
        self.penalty = taser.SteinPenalty()

    def wrapped(self, network: Callable[[Tensor], Tensor], step: Callable[..., Any]) -> Any:
        """The same step, (batch, index) → loss or {"loss": …}, with the term added."""

        def longer(batch: tuple[Tensor, Tensor], *rest: Any) -> Any:
            result, (x, y) = step(batch, *rest), batch
            term = self.lam * self.penalty(network, x, y, self.score(x))
            if isinstance(result, dict):
                return {**result, "loss": result["loss"] + term}
            return result + term

        return longer


def train(lam: float, epochs: int = 20) -> dict[str, float]:
    """Train by Lightning's Trainer; accuracy and residual variance on test images."""
    try:
        import lightning
    except ImportError:
        sys.exit("this example needs PyTorch Lightning: pip install lightning")

    class Classifier(lightning.LightningModule):
        """As you would write it without TASER."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.network(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class TaserCallback(lightning.Callback, TaserTerm):
        """Trainer(callbacks=[TaserCallback(score, lam)])."""

        def on_fit_start(self, _: Any, pl_module: Any) -> None:
            if isinstance(self.score, nn.Module):
                self.score.to(pl_module.device)
            pl_module.training_step = self.wrapped(pl_module.network, pl_module.training_step)

        def on_fit_end(self, _: Any, pl_module: Any) -> None:
            del pl_module.training_step  # the class's own is back

    lightning.seed_everything(0, verbose=False)
    digits = taser.data.load("digits")
    mlp = taser.models.build("mlp", classes=10, shape=(1, 8, 8), width=128, activation="silu")
    score = taser.scores.Gaussian.fit(digits.train.x)
    pairs = torch.utils.data.TensorDataset(digits.train.x, digits.train.y)
    loader = torch.utils.data.DataLoader(pairs, batch_size=128, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callbacks = [TaserCallback(score, lam)] if lam else []
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=callbacks, enable_model_summary=False,
        **quiet,
    )  # fmt: skip
    trainer.fit(Classifier(mlp), loader)
    judge = taser.SteinPenalty(backend="reverse", probes=16, unbiased=True).eval()
    with torch.no_grad():
        right = mlp.eval()(digits.test.x).argmax(1) == digits.test.y
        variance = judge(mlp, digits.test.x, digits.test.y, score(digits.test.x))
    return {"accuracy": right.float().mean().item(), "variance": variance.item()}


if __name__ == "__main__":
    for result in (train(0.0), train(1e-4)):
        print(" ".join(f"{name} {value:.4g}" for name, value in result.items()))
