"""A BatchNorm that returns its statistics, against torch's layer and var_mean."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taser.stein._batchnorm import mean_and_variance, normalised_with_statistics

EPS = 1e-3  # large, so that its place in the formulas can be seen

SHAPES = [(6, 5), (4, 5, 3), (4, 5, 3, 2), (2, 5, 3, 2, 2)]


def plain(x: Tensor, mean: Tensor, var: Tensor, *affine: Tensor | None) -> tuple[Tensor, ...]:
    """The reference: everything twice."""
    return F.batch_norm(x, mean, var, *affine, True, 0.3, EPS), *mean_and_variance(x)


def with_statistics(
    x: Tensor, mean: Tensor, var: Tensor, *affine: Tensor | None
) -> tuple[Tensor, ...]:
    return normalised_with_statistics(x, mean, var, *affine, 0.3, EPS)


def case(shape: tuple[int, ...], affine: bool = True) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    drawn = [3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 1]
    drawn += [torch.rand(5, generator=generator, dtype=torch.float64) for _ in range(2)]
    x, weight, bias = (t.requires_grad_() for t in drawn)
    return [x, weight, bias] if affine else [x, None, None]


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_statistics_and_gradients(
    shape: tuple[int, ...], affine: bool, used: tuple[int, ...]
) -> None:
    """For every part of the outputs that a loss may use."""
    found = []
    for layer in (with_statistics, plain):
        inputs = case(shape, affine)
        mean, var = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
        outputs = layer(inputs[0], mean, var, *inputs[1:])
        leaves = [t for t in inputs if t is not None]
        loss = sum((torch.arange(len(t.flatten())) * t.flatten().sin()).sum()
                   for i, t in enumerate(outputs) if i in used)  # fmt: skip
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        found.append([*outputs, mean, var, *gradients])
    for ours, theirs in zip(*found, strict=True):
        if theirs is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_second_derivatives() -> None:
    """With a loss that has a gradient penalty of its own."""
    x, weight, bias = case((4, 5, 3))
    mean, var = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda *inputs: with_statistics(inputs[0], mean.clone(), var.clone(), *inputs[1:]),
        (x, weight, bias),
    )


def test_channels_last_stay_so() -> None:
    x = torch.rand(2, 5, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    affine = torch.zeros(5), torch.ones(5), None, None
    y, mean, _ = normalised_with_statistics(x, *affine, 0.1, EPS)
    assert y.is_contiguous(memory_format=torch.channels_last)
    (y.square().sum() + mean.sum()).backward()
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
