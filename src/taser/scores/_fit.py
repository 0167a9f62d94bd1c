"""Training a denoiser by denoising score matching."""

import copy
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from taser._checkpoint import (
    Checkpoint,
    latest_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)
from taser._files import Progress, sha256_of_arrays
from taser._runtime import has_bfloat16, rows_like
from taser.models._copies import EMA

from ._denoiser import Denoiser

CHANGEABLE = ("steps", "minutes", "save_every")  # may differ when a training is resumed
TIMED = 3  # steps that are timed for an estimate


@dataclass(frozen=True)
class FitConfig:
    """How a denoiser is trained.

    It ends after `steps` or, if given, after `minutes` of training, including those before a
    resumption. ln σ is drawn from N(noise_mean, noise_std²); EDM's mean −1.2 for [-1, 1] is −1.9 on
    pixels in [0, 1]. The learning rate warms up and falls to zero as a cosine. For images the
    network computes in bfloat16 where the hardware has it.
    """

    steps: int = 2000
    minutes: float | None = None
    batch: int = 64
    rate: float = 2e-3
    ema: float = 0.999
    noise_mean: float = -1.9
    noise_std: float = 1.2
    flip: bool = False
    seed: int = 0
    save_every: float = 60.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "minutes", "rate", "noise_std"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} should be positive; got {value}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema should lie in [0, 1); got {self.ema}")


def denoising_loss(denoiser: Denoiser, x: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    """E[w(σ) ‖D(x + σε; σ) − x‖²] with w = (σ² + d²)/(σd)², EDM's equal weight for all levels."""
    wide = rows_like(sigma, x)
    error = denoiser(x + wide * noise, sigma) - x
    weight = (wide.square() + denoiser.std**2) / (wide * denoiser.std).square()
    return (weight * error.square()).mean()


def fit(
    denoiser: Denoiser, x: Tensor, config: FitConfig, *,
    checkpoint: Path | None = None, progress: Progress | None = None,
) -> Denoiser:  # fmt: skip
    """Train on x, (N, *event), and return the average of the weights over time (EMA).

    With `checkpoint` the state is saved in that folder every `save_every` seconds, and a later call
    resumes from it: bit for bit with the same arguments, unless the minutes end the run. `steps`
    and `minutes` may change between calls.
    """
    run = _Run(denoiser, x, config)
    if checkpoint is not None:
        run.restore(checkpoint)
    saved = started = time.monotonic()
    while run.position < config.steps:
        loss = run.advance()
        if not math.isfinite(loss):
            where = f"at step {run.step}" + (f"; last state: {checkpoint}" if checkpoint else "")
            raise RuntimeError(f"lower the rate ({config.rate}): the loss is not finite {where}")
        now = time.monotonic()
        run.elapsed, started = run.elapsed + now - started, now
        if progress:
            progress(run.position, config.steps, f"loss {loss:.3f}")
        if checkpoint is not None and now - saved > config.save_every:
            run.save(checkpoint)
            saved = now
    if checkpoint is not None:
        run.save(checkpoint)  # the caller removes it once the result is saved
    return run.average.model.requires_grad_(True)  # type: ignore[return-value]


def estimate_seconds(denoiser: Denoiser, x: Tensor, config: FitConfig) -> float:
    """About how long :func:`fit` takes on this machine, from a few steps of a copy."""
    run = _Run(copy.deepcopy(denoiser), x, config)
    run.advance()  # the first step also allocates
    begun = time.monotonic()
    for _ in range(TIMED):
        run.advance()
    seconds = config.steps * (time.monotonic() - begun) / TIMED
    return seconds if config.minutes is None else min(seconds, 60 * config.minutes)


class _Run:
    """The state of a training in progress."""

    def __init__(self, denoiser: Denoiser, x: Tensor, config: FitConfig) -> None:
        images = len(denoiser.event_shape) == 3
        if config.flip and not images:
            raise ValueError(f"flip is for images; these inputs have shape {denoiser.event_shape}")
        self.config, self.x, self.model = config, x, denoiser.train()
        if images:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = EMA(self.model, config.ema)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.rate)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.step, self.elapsed = 0, 0.0
        fixed = {name: v for name, v in asdict(config).items() if name not in CHANGEABLE}
        data = sha256_of_arrays([x.numpy(force=True)])
        self.identity = {**fixed, "data": data, "network": repr(denoiser.options)}
        self.device = next(self.model.parameters()).device
        self.bfloat16 = images and has_bfloat16(self.device)

    @property
    def position(self) -> int:
        """Steps done; with `minutes`, at least the elapsed share of them times `steps`."""
        if self.config.minutes is None:
            return self.step
        done = max(self.step / self.config.steps, self.elapsed / (60 * self.config.minutes))
        return int(min(1.0, done) * self.config.steps)

    def advance(self) -> float:
        """One step of the optimiser; returns the loss before it."""
        # Examples, noise levels and noise are drawn on the CPU: the same on every device.
        size = min(self.config.batch, len(self.x))
        rows = torch.randint(len(self.x), (size,), generator=self.generator)
        x = self.x[rows.to(self.x.device)].to(self.device)
        if self.config.flip:
            turned = torch.rand(size, generator=self.generator).to(self.device) < 0.5
            x = torch.where(rows_like(turned, x), x.flip(-1), x)
        level = torch.randn(size, generator=self.generator).to(self.device)
        sigma = (self.config.noise_mean + self.config.noise_std * level).exp()
        noise = torch.randn(x.shape, generator=self.generator).to(self.device)
        rate = self.config.rate * min(1.0, (self.step + 1) / 100)
        rate *= 0.5 * (1 + math.cos(math.pi * self.position / self.config.steps))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = denoising_loss(self.model, x, sigma, noise)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        self.average.update(self.model, self.step)
        return float(loss.detach())

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        tensors = {
            "model": self.model.state_dict(), "average": self.average.model.state_dict(),
            "optimiser": optimiser_tensors(self.optimiser),
            "random": {"state": self.generator.get_state()},
        }  # fmt: skip
        state = {"step": self.step, "elapsed": self.elapsed, "identity": self.identity}
        save_checkpoint(folder, self.step, Checkpoint(tensors, state))

    def restore(self, folder: Path) -> None:
        """Resume from the latest checkpoint in the folder, if there is one."""
        if (found := latest_checkpoint(folder)) is None:
            return
        saved = found.state.get("identity", {})
        if other := [name for name, value in self.identity.items() if saved.get(name) != value]:
            what = f"a training with other {', '.join(other)}"
            raise ValueError(f"{folder} holds the state of {what}; remove it to start again")
        self.model.load_state_dict(found.tensors["model"])
        self.average.model.load_state_dict(found.tensors["average"])
        restore_optimiser(self.optimiser, found.tensors["optimiser"])
        self.generator.set_state(found.tensors["random"]["state"])
        self.step, self.elapsed = found.state["step"], found.state["elapsed"]
