"""Bring a diffusion model as the score: any `UNet2DModel` of diffusers that you have on disk.

    pip install 'diffusers>=0.31'
    python examples/diffusion_score.py

A diffusion model works on [-1, 1] and predicts noise; taser works on pixels in [0, 1] and takes a
score. `from_diffusers(path or hub name)` does all of the conversion, for unconditional models of
pixels with a DDPM or DDIM scheduler. Here a tiny random model is made and saved first: it shows
that the pieces fit, and no more, for its score is not that of any data. Use yours.
"""

import sys
import tempfile
from pathlib import Path

import torch

import taser


def save_tiny(folder: Path, size: int = 8) -> None:
    """A random UNet for (1, size, size) images and its scheduler, as diffusers keeps them."""
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=size, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(8, 16), down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    unet.save_pretrained(folder)  # safetensors, which carry no code
    DDPMScheduler(num_train_timesteps=1000).save_pretrained(folder)


def step(source: str, batch: int = 32) -> dict[str, float]:
    """One step of training on digits with this model's score: the loss and its penalty."""
    torch.manual_seed(0)
    digits = taser.data.load("digits")
    x, y = digits.train.x[:batch], digits.train.y[:batch]
    model = taser.models.build("cnn", classes=10, shape=digits.input_shape, width=8)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    score = taser.scores.from_diffusers(source, timestep=50)  # s_σ in pixels, σ as at t = 50
    penalty = taser.SteinPenalty()
    base = torch.nn.functional.cross_entropy(model(x), y)
    value = penalty(model, x, y, score(x))
    (base + 1e-4 * value).backward()
    optimiser.step()
    return {"sigma": score.sigma, "base": base.item(), "penalty": value.item()}


def main() -> dict[str, float]:
    """Make a model, save it, and use it from where it lies."""
    try:
        import diffusers  # noqa: F401
    except ImportError:
        sys.exit("this example reads a diffusion model: pip install 'diffusers>=0.31'")
    with tempfile.TemporaryDirectory() as folder:
        save_tiny(Path(folder))
        return step(folder)


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:8} {value:.4g}")
