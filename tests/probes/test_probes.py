"""Probes against their formulas, in every precision, and what they refuse."""

import warnings

import pytest
import torch
from torch import Tensor

from taser.probes import Logit, Margin, Output, Probed


def logits(classes: int = 5, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = scale * torch.randn(7, classes, generator=generator, dtype=torch.float64)
    return z, torch.randint(classes, (7,), generator=generator)


def margin_by_hand(z: Tensor, y: Tensor) -> Tensor:
    rows = []
    for row, label in zip(z, y, strict=True):
        others = torch.cat([row[:label], row[label + 1 :]])
        rows.append(others.exp().sum().log() - row[label])
    return torch.stack(rows)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_margin_is_its_formula(classes: int) -> None:
    z, y = logits(classes)
    torch.testing.assert_close(Margin()(z, y), margin_by_hand(z, y))


def test_margin_of_two_classes_is_a_difference() -> None:
    z, y = logits(2)
    torch.testing.assert_close(Margin()(z, y), z[range(7), 1 - y] - z[range(7), y])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_margin_is_stable_in_low_precision(dtype: torch.dtype, scale: float) -> None:
    """Against float64 on the very numbers that the low precision can hold."""
    z, y = logits(scale=scale)
    low = z.to(dtype)
    m = Margin()(low, y)
    assert m.dtype == torch.float32
    torch.testing.assert_close(m.double(), Margin()(low.double(), y), rtol=1e-6, atol=1e-6 * scale)


def test_margin_has_right_derivatives() -> None:
    z, y = logits(4)
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: Margin()(z, y), z)
    assert torch.autograd.gradgradcheck(lambda z: Margin()(z, y), z)
    two, labels = logits(2)
    (gradient,) = torch.autograd.grad(Margin()(two.requires_grad_(), labels).sum(), two)
    assert torch.isfinite(gradient).all()


def test_logit_and_output() -> None:
    z, y = logits()
    torch.testing.assert_close(Logit()(z, y), z[range(7), y])
    torch.testing.assert_close(Logit(2)(z, None), z[:, 2])
    torch.testing.assert_close(Output(1)(z), z[:, 1])
    torch.testing.assert_close(Output()(z[:, 0]), z[:, 0])
    assert Output()(z.bfloat16()).dtype == Logit(0)(z.half(), None).dtype == torch.float32


@pytest.mark.parametrize("probe", [Margin(), Logit()])
def test_probabilities_raise_a_warning(probe: Margin | Logit) -> None:
    z, y = logits()
    with pytest.warns(UserWarning, match="probabilities, not logits"):
        probe(z.softmax(1), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_are_seen_in_every_precision_and_logits_are_not(dtype: torch.dtype) -> None:
    z, y = logits()
    with pytest.warns(UserWarning, match="probabilities"):
        Margin()(z.to(dtype).softmax(1), y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Margin()(z.to(dtype), y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, _: Margin()(z, None), "needs labels"),
        (lambda z, y: Margin()(z[:, :1], y), "at least two classes"),
        (lambda z, y: Margin()(z[:, 0], y), r"got \(7,\)"),
        (lambda z, y: Margin()(z, y + 5), "labels from 5"),
        (lambda z, y: Margin()(z, y - 9), "0…4"),
        (lambda z, y: Margin()(z, y[:3]), "got 3 for 7 inputs"),
        (lambda z, y: Margin()(z, y.float()), "one whole number for each input; got torch.float32"),
        (lambda z, y: Logit(9)(z, y), "5 classes"),
        (lambda *_: Logit(-1), "0 or more"),
        (lambda z, _: Logit()(z, None), "give labels"),
        (lambda z, _: Output(5)(z), "m > 5"),
        (lambda *_: Output(-1), "0 or more"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*logits())  # type: ignore[operator]


def test_probed_repeats_labels_for_copies_of_the_batch() -> None:
    z, y = logits()
    f = Probed(lambda x: x, Margin(), y)
    torch.testing.assert_close(f(z.repeat(3, 1)), Margin()(z, y).repeat(3))
    with pytest.raises(ValueError, match="no multiple"):
        f(z[:3])
