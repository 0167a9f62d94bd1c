"""The Lightning callback, with the real Trainer."""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import taser
from taser.integrations.lightning import TaserCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers

THREAT = taser.Threat("linf", 0.15)


class Classifier(lightning.LightningModule):
    """As a user has it, without TASER."""

    def __init__(self, kind: str = "tensor") -> None:
        super().__init__()
        self.kind = kind
        self.model = taser.models.build(
            "mlp", classes=10, shape=(1, 8, 8), width=16, activation="silu"
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
        x, y = batch
        if self.kind == "skip" and index == 1:
            return None
        loss = F.cross_entropy(self.model(x), y)
        return {"loss": loss} if self.kind == "dictionary" else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


class Forward(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def rows(n: int = 64) -> tuple[Tensor, Tensor]:
    digits = taser.data.load("digits")
    return digits.train.x[:n], digits.train.y[:n]


def regulariser(**options: Any) -> taser.Taser:
    score = taser.scores.pretrained("digits").at(timestep=50)
    return taser.Taser(score, threat=THREAT, **{"every": 1, **options})


def fit(module: Classifier, callback: TaserCallback, folder: Path, **options: Any) -> Any:
    loader = DataLoader(TensorDataset(*rows()), batch_size=32)
    settings = {"max_epochs": 1, **options}
    resume = settings.pop("ckpt_path", None)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, callbacks=[callback],
        enable_model_summary=False, default_root_dir=folder, enable_checkpointing=False, **settings,
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=resume)
    return trainer


def by_hand(
    module: Classifier, robust: taser.Taser, weight: float, batch: int = 32
) -> list[Tensor]:
    """The weights after one epoch of the loop that the callback replaces."""
    optimiser = torch.optim.SGD(module.model.parameters(), lr=0.1)
    x, y = rows()
    module.train()
    for part_x, part_y in zip(x.split(batch), y.split(batch), strict=True):
        loss = F.cross_entropy(module.model(part_x), part_y)
        loss = loss + weight * robust(module.model, part_x, part_y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return list(module.model.parameters())


@pytest.mark.parametrize("kind", ["tensor", "dictionary", "forward"])
def test_training_is_that_of_a_loop_by_hand(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Forward() if kind == "forward" else Classifier(kind)
    other = Classifier()
    other.load_state_dict(module.state_dict())
    network = None if kind == "forward" else "model"
    callback = TaserCallback(regulariser(), 0.5, network=network)
    trainer = fit(module, callback, tmp_path)
    expected = by_hand(other, regulariser().attach(other.model), 0.5)
    for mine, theirs in zip(module.model.parameters(), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert trainer.callback_metrics["penalty"] > 0
    assert "training_step" not in vars(module)  # the class's own is back


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, other = Classifier(), Classifier()
    other.load_state_dict(module.state_dict())
    callback = TaserCallback(regulariser(fraction=1), 0.5, network="model")
    fit(module, callback, tmp_path, accumulate_grad_batches=2)
    expected = by_hand(other, regulariser(fraction=1), 0.5, batch=64)
    for mine, theirs in zip(module.model.parameters(), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_resumed_fit_draws_what_an_uninterrupted_one_draws(tmp_path: Path) -> None:
    results = []
    for epochs in ([2], [1, 2]):
        torch.manual_seed(0)
        module, path = Classifier(), None
        for end in epochs:
            target = taser.regularisers.TargetLoss(5.0, start=0.1, rate=0.5)
            callback = TaserCallback(regulariser(), target, network="model")
            trainer = fit(module, callback, tmp_path, max_epochs=end, ckpt_path=path)
            path = tmp_path / "last.ckpt"
            trainer.save_checkpoint(path)
            module = Classifier() if end < epochs[-1] else module
        results.append((target.weight, [p.detach().clone() for p in module.model.parameters()]))
    assert results[0][0] == results[1][0] > 0.15
    for mine, theirs in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_skipped_batch_stays_skipped(tmp_path: Path) -> None:
    callback = TaserCallback(regulariser(), network="model")
    fit(Classifier("skip"), callback, tmp_path)
    assert callback.regulariser.calls == 1


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Classifier has no forward.*its modules are model"):
        fit(Classifier(), TaserCallback(regulariser()), tmp_path)
    with pytest.raises(ValueError, match="network='net'"):
        fit(Classifier(), TaserCallback(regulariser(), network="net"), tmp_path)
    manual = Classifier()
    manual.automatic_optimization = False
    with pytest.raises(ValueError, match="needs automatic optimisation"):
        fit(manual, TaserCallback(regulariser(), network="model"), tmp_path)


def test_a_network_of_its_own_batch_layout(tmp_path: Path) -> None:
    class Dictionary(Classifier):
        def training_step(self, batch: dict[str, Tensor], index: int) -> Any:
            return super().training_step((batch["image"], batch["label"]), index)

    callback = TaserCallback(
        regulariser(), network="model", batch=lambda b: (b["image"], b["label"])
    )
    x, y = rows(32)
    loader = DataLoader([{"image": a, "label": b} for a, b in zip(x, y, strict=True)], 16)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[callback],
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Dictionary(), loader)
    assert callback.regulariser.calls == 2
    assert isinstance(callback.regulariser, nn.Module)
