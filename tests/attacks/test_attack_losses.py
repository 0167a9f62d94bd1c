"""Losses against their definitions, a number at a time."""

import pytest
import torch

from attacks.victims import seeded
from taser.attacks import cross_entropy, kl_divergence, kl_from, margin, squared_error


def logits() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 4, generator=seeded()), torch.tensor([0, 1, 2, 3, 0, 1])


def test_margin_is_the_best_wrong_logit_minus_the_right_one() -> None:
    z, y = logits()
    for row, label, found in zip(z, y.tolist(), margin(z, y), strict=True):
        wrong = max(float(row[j]) for j in range(4) if j != label)
        assert float(found) == pytest.approx(wrong - float(row[label]), abs=1e-6)
    assert ((margin(z, y) > 0) == (z.argmax(1) != y)).all()


def test_cross_entropy_is_minus_log_probability() -> None:
    z, y = logits()
    torch.testing.assert_close(cross_entropy(z, y), -z.softmax(1)[range(6), y].log())


def test_kl_is_zero_only_at_the_clean_logits() -> None:
    z, y = logits()
    torch.testing.assert_close(kl_from(z)(z + 3.0, y), torch.zeros(6), rtol=0, atol=1e-6)
    assert (kl_from(z)(z.flip(0), y) > 1e-3).all()


def test_kl_is_computed_in_full_precision() -> None:
    """Also for bfloat16 logits, as under autocast."""
    z, y = logits()
    clean, moved = z.bfloat16(), z.flip(0).bfloat16()
    exact = kl_divergence(clean.float(), moved.float())
    assert exact.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        for found in (kl_divergence(clean, moved), kl_from(clean)(moved, y)):
            torch.testing.assert_close(found, exact, rtol=0, atol=0)


def test_squared_error_takes_a_column_or_a_row() -> None:
    y = torch.tensor([1.0, 2.0])
    outputs = torch.tensor([[1.5], [0.0]])
    assert torch.equal(squared_error(outputs, y), torch.tensor([0.25, 4.0]))
