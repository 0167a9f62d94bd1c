"""A regulariser prepared for Accelerate."""

from pathlib import Path

import torch
from accelerate import Accelerator

import taser
from taser.integrations.accelerate import prepare


def test_prepared_saved_and_restored(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(taser.models.build("mlp", classes=10, shape=(1, 8, 8), width=8))
    x, y = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    score = taser.scores.pretrained("digits").at(timestep=50)
    robust = prepare(taser.Taser(score, threat=taser.Threat("linf", 0.15)), accelerator, model)
    assert not any(p.requires_grad for p in robust.parameters())
    first = robust(model, x, y).item()
    accelerator.save_state(str(tmp_path))
    second = robust(model, x, y).item()
    assert second != first  # another quarter of the batch
    accelerator.load_state(str(tmp_path))
    assert robust(model, x, y).item() == second
    outputs = model.train()(x)  # the hooks of `attach` see this pass
    (outputs.sum() + robust(model, x, y)).backward()
    robust.release()
