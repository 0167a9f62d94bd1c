"""Accuracy under shift, for models whose answers have closed forms."""

import math

import pytest
import torch
from torch import Tensor

from taser.evaluation._corruptions import CORRUPTIONS, Corruption, mixed_corruptions, shift
from taser.models import Wrapped


@Wrapped
def bright(x: Tensor) -> Tensor:
    """Class 1 where the picture is brighter than grey."""
    z = x.flatten(1).mean(1) - 0.5
    return torch.stack([-z, z], 1)


@pytest.fixture
def examples() -> tuple[Tensor, Tensor]:
    x = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x = (x + torch.linspace(-0.4, 0.4, 300).view(-1, 1, 1, 1)).clamp(0, 1)
    return x, bright(x).argmax(1)


def test_accuracy_is_counted_for_every_corruption_and_severity(
    examples: tuple[Tensor, Tensor],
) -> None:
    x, y = examples
    lighten = Corruption("lighten", lambda x, level, _: x + level, (0.0, 0.05, 0.1, 0.2, 1.0))
    colour = next(c for c in CORRUPTIONS if c.needs_colour)
    seen: list[str] = []
    result = shift(
        bright, x, y, corruptions=(lighten, colour), batch_size=64,
        progress=lambda done, total, label: seen.append(f"{done}/{total} {label}"),
    )  # fmt: skip
    assert seen == ["0/1 lighten"]
    assert "three colours" in result.skipped[colour.name]
    assert result.clean_accuracy.value == 1.0
    accuracies = [result.accuracy("lighten", severity).value for severity in range(1, 6)]
    assert accuracies[0] == 1.0
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] == pytest.approx(float(y.float().mean()))
    assert result.accuracy().value == pytest.approx(sum(accuracies) / 5)
    assert result.numbers()["corruptions"]["lighten"]["severities"][4]["value"] == accuracies[-1]


def test_the_interval_is_that_of_a_share(examples: tuple[Tensor, Tensor]) -> None:
    x, y = examples
    lighten = Corruption("lighten", lambda x, _level, _: x + 1.0, (1,) * 5)
    accuracy = shift(bright, x, y, corruptions=(lighten,)).accuracy("lighten", 1)
    error = math.sqrt(accuracy.value * (1 - accuracy.value) / 300)
    # A percentile of 1000 resamples is itself accurate to about a tenth of the error.
    assert accuracy.high - accuracy.low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_one_seed_gives_one_result(examples: tuple[Tensor, Tensor]) -> None:
    first, again, other = (shift(bright, *examples, seed=seed).numbers() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_mixture_corrupts_every_example_once(examples: tuple[Tensor, Tensor]) -> None:
    x = examples[0][:40]
    out = mixed_corruptions(x, 5)
    assert bool(((out - x).flatten(1).abs().amax(1) > 0).all())
    first = CORRUPTIONS[0](x[::13], 5)  # thirteen of the fourteen need no colour
    torch.testing.assert_close(out[::13], first)


def test_a_function_has_to_be_wrapped(examples: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(TypeError, match=r"torch.nn.Module.*taser.models.Wrapped"):
        shift(bright.function, *examples)


def test_vectors_cannot_be_corrupted() -> None:
    with pytest.raises(ValueError, match="none of the corruptions"):
        shift(bright, torch.rand(4, 3), torch.zeros(4, dtype=torch.int64))


def test_a_severity_that_there_is_not(examples: tuple[Tensor, Tensor]) -> None:
    result = shift(bright, *examples, corruptions=CORRUPTIONS[:1])
    for severity in (0, 6):
        with pytest.raises(ValueError, match="severity should be one of"):
            result.accuracy(severity=severity)
