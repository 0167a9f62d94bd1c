import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taser.data import CropAndFlip


def slowly(augment: CropAndFlip, x: Tensor, generator: torch.Generator) -> Tensor:
    """One image at a time, by slicing and flipping."""
    size, p = x.shape[2:], augment.padding
    down, right = torch.randint(2 * p + 1, (2, len(x)), generator=generator).tolist()
    mirrored = (torch.rand(len(x), generator=generator) < (0.5 if augment.flip else 0)).tolist()

    def moved(image: Tensor, k: int) -> Tensor:
        padded = F.pad(image[None], [p] * 4)[0]
        crop = padded[:, down[k] : down[k] + size[0], right[k] : right[k] + size[1]]
        return crop.flip(2) if mirrored[k] else crop

    return torch.stack([moved(x[k], k) for k in range(len(x))])


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(40, 3, 8, 8), (40, 1, 6, 9)])
def test_against_a_loop_over_images(flip: bool, shape: tuple) -> None:
    x, augment = torch.rand(shape), CropAndFlip(3, flip=flip)
    found = augment(x, generator=torch.Generator().manual_seed(5))
    assert torch.equal(found, slowly(augment, x, torch.Generator().manual_seed(5)))


def test_every_crop_and_both_mirrors_come_up() -> None:
    """Uniform over (2p+1)² places × 2: each of 18 cases within five standard errors."""
    n = 9000
    x = torch.zeros(n, 1, 4, 4)
    x[:, 0, 1, 1] = 1.0
    moved = CropAndFlip(1)(x, generator=torch.Generator().manual_seed(0))
    counts = moved.sum((0, 1))
    rows = torch.tensor([1, 1, 1, 0]) / 3  # the mark moves by −1, 0 or 1 …
    columns = (rows + rows.flip(0)) / 2  # … and half of the time to the other side
    expected = n * rows[:, None] * columns
    error = 5 * (expected * (1 - expected / n)).sqrt()
    assert bool(((counts - expected).abs() <= error).all())


def test_bad_options_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="not be negative; got -1"):
        CropAndFlip(-1)
    with pytest.raises(ValueError, match=r"images, \(B, C, H, W\)"):
        CropAndFlip(4)(torch.rand(4, 3))
