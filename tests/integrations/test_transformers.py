"""The Hugging Face Trainer with the penalty, on a ViT from a configuration."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import taser
from taser.integrations.transformers import TaserTrainer

pytestmark = pytest.mark.filterwarnings("ignore")


def vit() -> Any:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, num_labels=10, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(config)


def regulariser(**options: Any) -> taser.Taser:
    score = taser.scores.pretrained("digits").at(timestep=50)
    return taser.Taser(score, threat=taser.Threat("linf", 0.15), fraction=1, every=1, **options)


def rows(n: int = 32) -> list[dict[str, Any]]:
    train = taser.data.load("digits").train
    return [
        {"pixel_values": x, "labels": int(y)} for x, y in zip(train.x[:n], train.y, strict=False)
    ]


def fit(model: Any, folder: Path, *, accumulate: int = 1, **options: Any) -> TaserTrainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=32 // accumulate, max_steps=1,
        gradient_accumulation_steps=accumulate, learning_rate=0.1, optim="sgd", report_to=[],
        lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, disable_tqdm=True,
        save_strategy="no", weight_decay=0.0,
    )  # fmt: skip
    options = {"train_dataset": rows(), "regulariser": regulariser(), "weight": 0.5, **options}
    trainer = TaserTrainer(model, arguments, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_is_that_of_a_loop_by_hand(accumulate: int, tmp_path: Path) -> None:
    model, other = vit(), vit()
    fit(model, tmp_path, accumulate=accumulate)
    optimiser = torch.optim.SGD(other.parameters(), lr=0.1)
    x = torch.stack([row["pixel_values"] for row in rows()])
    y = torch.tensor([row["labels"] for row in rows()])
    network = taser.models.Wrapped(lambda x: other(pixel_values=x).logits, other).train()
    loss = other(pixel_values=x, labels=y).loss + 0.5 * regulariser()(network, x, y)
    loss.backward()
    optimiser.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_penalty_changes_the_step_and_not_the_evaluation(tmp_path: Path) -> None:
    model, plain = vit(), vit()
    trainer = fit(model, tmp_path)
    fit(plain, tmp_path, weight=0.0)
    assert not torch.equal(model.classifier.weight, plain.classifier.weight)
    calls = trainer.regulariser.calls
    trainer.evaluate(rows(8))
    assert trainer.regulariser.calls == calls == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_target_sees_the_loss_of_the_batch(accumulate: int, tmp_path: Path) -> None:
    """The first loss is about log 10, far above the target: λ cannot rise."""
    low = taser.regularisers.TargetLoss(1.3, start=0.1, rate=1.0)
    fit(vit(), tmp_path, accumulate=accumulate, weight=low)
    assert low.weight == 0.1
    high = taser.regularisers.TargetLoss(100.0, start=0.1, rate=1.0)
    fit(vit(), tmp_path, accumulate=accumulate, weight=high)
    assert high.weight > 0.2


def test_a_batch_of_other_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"should have 'image' and 'labels'; it has"):
        fit(vit(), tmp_path, inputs="image")
