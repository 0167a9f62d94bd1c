"""Adversarial weight perturbation: which weights move, by how much, and that they come back."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from published import published
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taser._runtime import exit_process
from taser.objectives import AWP, Standard, perturbed

GAMMA = 0.01


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def network() -> tuple[nn.Sequential, Tensor, Tensor]:
    ref = published("pgd", "conv")
    return ref.model(), ref["x"], ref["y"]


def test_each_tensor_moves_by_gamma_of_its_size_up_the_loss() -> None:
    model, x, y = network()
    before, value = parameters(model), Standard()(model, x, y).item()
    with AWP(Standard(), GAMMA)(model, x, y) as loss:
        assert loss > value
        moves = {name: (w - before[name]).norm() for name, w in parameters(model).items()}
    for name, move in moves.items():
        expected = GAMMA * before[name].norm() if before[name].ndim > 1 else torch.zeros(())
        torch.testing.assert_close(move, expected.double(), rtol=1e-10, atol=0)
    # The way back is a subtraction, so it rounds, as in the authors' code.
    torch.testing.assert_close(parameters(model), before, rtol=0, atol=1e-15)


def test_frozen_weights_stay() -> None:
    model, x, y = network()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    with AWP(Standard(), GAMMA)(model, x, y):
        assert torch.equal(model[0].weight, before)


def test_a_weight_without_influence_does_not_move() -> None:
    """Its gradient is zero, and 0/‖0‖ has to stay 0."""
    model, x, y = network()
    model.register_parameter("spare", nn.Parameter(torch.ones(3, 3).double()))
    with AWP(Standard(), GAMMA)(model, x, y):
        assert torch.equal(model.spare, torch.ones(3, 3).double())


def test_only_weights_by_name_move_as_in_the_published_code() -> None:
    """A class token or an embedding of positions, (1, N, D), is no weight there."""

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.ones(1, 4))
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x + self.position)

    model, x, y = Embedded(), torch.rand(6, 4), torch.arange(6) % 3
    before = model.linear.weight.detach().clone()
    with AWP(Standard(), GAMMA)(model, x, y):
        assert torch.equal(model.position, torch.ones(1, 4))
        assert not torch.equal(model.linear.weight, before)
    model.linear.requires_grad_(False)
    with (
        pytest.raises(ValueError, match=r"in their name; this model has none .*position"),
        AWP(Standard(), GAMMA)(model, x, y),
    ):
        pass


def test_a_gradient_that_is_not_finite_is_no_direction() -> None:
    """An infinite perturbation cannot be subtracted from the weights again."""
    model, x, y = network()
    before = parameters(model)

    def loss(m: nn.Module) -> Tensor:
        return (
            Standard()(m, x, y)
            + m[0].weight.flatten()[0].sub(before["0.weight"][0, 0, 0, 0]).sqrt()
        )

    with perturbed(model, [loss], GAMMA):
        moved = parameters(model)
    assert all(bool(torch.isfinite(weight).all()) for weight in moved.values())
    assert not torch.equal(moved["0.weight"], before["0.weight"])  # its other entries do move
    torch.testing.assert_close(parameters(model), before, rtol=0, atol=1e-15)


def test_the_ascent_leaves_statistics_and_gradients_alone() -> None:
    model, x, y = network()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    buffers = [buffer.clone() for buffer in model.buffers()]
    with perturbed(model, [lambda m: Standard()(m, x, y)], GAMMA):
        assert all(map(torch.equal, model.buffers(), buffers))
        assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
        assert model.training


def test_the_weights_come_back_when_the_step_fails() -> None:
    model, x, y = network()
    before = parameters(model)
    with pytest.raises(RuntimeError, match="in the middle"), AWP(Standard(), GAMMA)(model, x, y):
        raise RuntimeError("in the middle")
    torch.testing.assert_close(parameters(model), before, rtol=0, atol=1e-15)


def test_a_failing_ascent_changes_nothing() -> None:
    model, x, y = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def fails(model: nn.Module) -> Tensor:
        model(x)
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        perturbed(model, [lambda m: Standard()(m, x, y), fails], GAMMA).__enter__()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_several_losses_give_the_move_of_their_sum() -> None:
    """As a batch does that is taken in parts; evaluation mode, where parts do not meet."""
    model, x, y = network()
    model.eval()
    parts = [lambda m, rows=rows: Standard()(m, x[rows], y[rows]) / 2
             for rows in (slice(0, 3), slice(3, 6))]  # fmt: skip
    with perturbed(model, parts, GAMMA):
        of_parts = parameters(model)
    with perturbed(model, [lambda m: Standard()(m, x, y)], GAMMA):
        torch.testing.assert_close(parameters(model), of_parts, rtol=1e-12, atol=1e-12)


def worker(rank: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=2,
        timeout=timedelta(seconds=100),
    )  # fmt: skip
    model, x, y = network()
    rows = slice(3 * rank, 3 * rank + 3)
    wrapped = DistributedDataParallel(model.eval())
    with perturbed(wrapped, [lambda m: Standard()(m, x[rows], y[rows])], GAMMA):
        save_file(parameters(model), f"{out}/{rank}.safetensors")
    exit_process()


def test_two_processes_move_alike_and_as_one_with_both_halves(tmp_path: Path) -> None:
    mp.spawn(worker, (str(tmp_path),), nprocs=2)  # no fork, and an error of one ends both
    model, x, y = network()
    with perturbed(model.eval(), [lambda m: Standard()(m, x, y)], GAMMA):
        for rank in (0, 1):
            moved = load_file(tmp_path / f"{rank}.safetensors")
            torch.testing.assert_close(moved, parameters(model), rtol=1e-12, atol=1e-12)
