"""Corruptions against their formulas, on pictures of every size and colour that we meet."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taser.evaluation._corruptions import (
    CORRUPTIONS,
    Corruption,
    brightness,
    contrast,
    defocus_blur,
    fog,
    gaussian_blur,
    gaussian_noise,
    impulse_noise,
    motion_blur,
    pixelate,
    saturate,
    shifted,
    shot_noise,
    speckle_noise,
)

SHAPES = [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 64, 48)]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def pictures(*shape: int) -> Tensor:
    """Smooth pictures, since blur turns noise into grey."""
    coarse = torch.rand(shape[0], shape[1], 4, 4, generator=generator())
    return F.interpolate(coarse, shape[2:], mode="bilinear", align_corners=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_corrupted_pictures_are_pictures_and_reproducible(
    corruption: Corruption, shape: tuple[int, ...]
) -> None:
    x = pictures(6, *shape)
    if corruption.needs_colour and shape[0] != 3:
        with pytest.raises(ValueError, match="three colours"):
            corruption(x, 1)
        return
    before = x.clone()
    for severity in (1, 5):
        out = corruption(x, severity, seed=3)
        assert out.shape == x.shape
        assert out.dtype == x.dtype
        assert float(out.min()) >= 0
        assert float(out.max()) <= 1
        assert torch.equal(out, corruption(x, severity, seed=3))
        assert not torch.equal(out, x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_severity_five_changes_more_than_one(corruption: Corruption) -> None:
    mild = 3 if corruption.name == "saturate" else 1  # its first two fade colours
    x = pictures(32, 3, 32, 32)
    less, more = (float((corruption(x, severity) - x).abs().mean()) for severity in (mild, 5))
    assert more > less


def test_noise_has_its_mean_and_variance() -> None:
    x = torch.full((1, 1, 400, 400), 0.5)
    pixels = x.numel()
    for noisy, variance in (
        (gaussian_noise(x, 0.1, generator()), 0.01),
        (shot_noise(x, 50, generator()), 0.5 / 50),  # Poisson: mean/c
        (speckle_noise(x, 0.1, generator()), (0.1 * 0.5) ** 2),
        (impulse_noise(x, 0.04, generator()), 0.04 * 0.25),
    ):
        # Four standard errors; the fourth moment of the heaviest of the three is 6.25 variance².
        assert abs(float(noisy.mean()) - 0.5) < 4 * math.sqrt(variance / pixels)
        assert abs(float(noisy.var()) / variance - 1) < 4 * math.sqrt(24 / pixels)


def test_blurs_spread_a_point_as_their_kernels_say() -> None:
    point = torch.zeros(1, 1, 32, 32)
    point[..., 16, 16] = 1.0
    away = (torch.arange(32) - 16.0).square()
    for blurred, variance, tolerance in (
        (gaussian_blur(point, 1.0, generator()), 1.0, 0.01),
        # the variances of CIFAR-10-C's disc kernels, weakest and strongest
        (defocus_blur(point, 0.55, generator()), 0.081, 0.02),
        (defocus_blur(point, 1.6, generator()), 0.667, 0.06),
    ):
        assert float(blurred.sum()) == pytest.approx(1.0, abs=1e-5)
        assert float((blurred[0, 0].sum(0) * away).sum()) == pytest.approx(variance, abs=tolerance)


def test_blur_leaves_a_plain_picture_alone() -> None:
    grey = torch.full((2, 3, 8, 8), 0.3)
    for blur in (gaussian_blur, defocus_blur, motion_blur):
        torch.testing.assert_close(blur(grey, 2.0, generator()), grey)


def test_a_shift_by_whole_pixels_is_a_roll() -> None:
    x = torch.rand(2, 1, 6, 5, generator=generator())
    moved = shifted(x, torch.tensor([2.0, 1.0]).expand(2, 1, 1, 2))
    torch.testing.assert_close(moved[..., :-1, :-2], x[..., 1:, 2:])
    torch.testing.assert_close(moved[..., :-1, -1], x[..., 1:, -1])  # the edge is repeated


def test_light_keeps_what_it_says() -> None:
    x = torch.rand(4, 3, 5, 5, generator=generator())
    value, low = x.amax(1), x.amin(1)
    brighter = brightness(x, 0.1, generator())
    torch.testing.assert_close(brighter.amax(1), (value + 0.1).clamp(max=1))
    torch.testing.assert_close(brighter.amin(1) / brighter.amax(1), low / value)
    paler = saturate(x, (0.3, 0.0), generator())
    torch.testing.assert_close(paler.amax(1), value)
    torch.testing.assert_close(1 - paler.amin(1) / value, 0.3 * (1 - low / value))
    grey = torch.full((1, 3, 2, 2), 0.4)
    torch.testing.assert_close(saturate(grey, (2.5, 0.2), generator()), grey)
    torch.testing.assert_close(brightness(0 * grey, 0.2, generator()), 0 * grey + 0.2)
    flat = contrast(x, 0.5, generator())
    torch.testing.assert_close(flat.mean((2, 3)), x.mean((2, 3)))
    torch.testing.assert_close(flat.std((2, 3)), 0.5 * x.std((2, 3)))


def test_pixels_of_a_cell_become_their_mean() -> None:
    x = torch.rand(2, 1, 8, 8, generator=generator())
    squares = F.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(pixelate(x, 0.5, generator()), squares)


def test_fog_keeps_the_brightest_value_in_range() -> None:
    x = pictures(4, 3, 16, 16)
    foggy = fog(x, (1.0, 2.0), generator())
    assert bool((foggy.amax((1, 2, 3)) <= x.amax((1, 2, 3)) + 1e-6).all())
    assert float(foggy.var((2, 3)).mean()) < float(x.var((2, 3)).mean())


def test_wrong_inputs_are_refused() -> None:
    noise = CORRUPTIONS[0]
    with pytest.raises(ValueError, match="severity"):
        noise(torch.rand(1, 1, 4, 4), 6)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        noise(255 * torch.rand(1, 1, 4, 4), 1)
    with pytest.raises(ValueError, match="B, C, H, W"):
        noise(torch.rand(3, 8), 1)
    with pytest.raises(ValueError, match="five levels"):
        Corruption("short", gaussian_noise, (0.1,))
