"""A loss or a gradient that is not finite stops the run before it spoils anything."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_runs import MLP, initial, same, small, weights
from torch import Tensor, nn

from taser._checkpoint import latest_checkpoint
from taser.objectives import Loss, Standard
from taser.training import Config, NonFiniteLoss, train

RUNS: dict[str, dict] = {
    "plain": {},
    "accumulated": {"loop": {"accumulate": 2}},
    "clipped": {"optimiser": {"clip": 1.0}},
    "perturbed": {"objective": {"awp": True, "awp_start": 0}},
}


def config(**sections: dict) -> Config:
    loop = {"epochs": 3, **sections.pop("loop", {})}
    return small(model=MLP, loop=loop, **sections)


def spoil(
    monkeypatch: pytest.MonkeyPatch, call: int, harm: Callable[[Tensor, nn.Module], Tensor]
) -> None:
    """From the given loss on, counted from zero, `harm` is done to it."""
    original, calls = Standard.loss, iter(range(1000))

    def loss(self: Standard, model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor) -> Loss:
        found = original(self, model, x, y, x_adv)
        return Loss(harm(found.total, model)) if next(calls) >= call else found

    monkeypatch.setattr(Standard, "loss", loss)


def infinite_loss(total: Tensor, _: nn.Module) -> Tensor:
    return total * float("inf")


def infinite_gradient(total: Tensor, model: nn.Module) -> Tensor:
    """The square root of something that is zero: finite itself, with a slope that is not."""
    return total + (next(model.parameters()).sum() * 0.0).sqrt()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("harm", [infinite_loss, infinite_gradient])
def test_the_last_good_checkpoint_is_left(
    tmp_path: Path, name: str, harm: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes wrong in the last step of the second epoch, at whose end a checkpoint is written."""
    whole = config(**RUNS[name])
    train(whole, tmp_path / "whole")
    losses_per_step = 2 if name in ("accumulated", "perturbed") else 1
    with monkeypatch.context() as patch:
        spoil(patch, 3 * losses_per_step, harm)
        with pytest.raises(NonFiniteLoss) as caught:
            train(whole, tmp_path / "run")
    for words in ("not finite", "at step 3, epoch 2", "lower the rate", f"{tmp_path}/run/check"):
        assert words in str(caught.value)
    checkpoint = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state["progress"]["step"] == 2
    for tensors in (*checkpoint.tensors.values(), weights(tmp_path / "run", "best")):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    train(whole, tmp_path / "run")  # the cause is gone: it goes on from there
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_a_rate_that_is_too_high_is_reported(tmp_path: Path) -> None:
    """The weights overflow by themselves; the first step already has nothing to go back to."""
    far = config(optimiser={"name": "sgd", "rate": 1e30})
    with pytest.raises(NonFiniteLoss, match=r"the loss is not finite \(loss (nan|inf)"):
        train(far, tmp_path)
    assert not (tmp_path / "last.safetensors").exists()
    assert initial(far)
