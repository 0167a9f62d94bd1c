"""Inputs and options that are refused, each with one clear error."""

import math
import warnings
from typing import get_args

import torch
from torch import Tensor

from taser.probes import Probe

from ._backends import Distribution, Operator
from ._batchnorm import Statistics
from ._layer_checks import Backend

CENTERS = ("batch", "running", "calibrated", "none")
BRIGHT = 10.0  # more than any usual normalisation makes of pixels


def check_inputs(x: Tensor, s: Tensor, finite: bool = True) -> None:
    """Raise unless x and s are (finite) floats of one shape and s carries no graph."""
    check_tensor("x", x)
    check_tensor("the score s", s)
    if not s.is_floating_point():
        raise ValueError(f"the score s should be floating point; got {s.dtype}")
    if not x.is_floating_point():
        raise ValueError(f"x should be floating point, images scaled to [0, 1]; got {x.dtype}")
    if x.ndim < 2 or not len(x):
        raise ValueError(f"x should be a batch of inputs, (B, *); got shape {tuple(x.shape)}")
    if s.shape != x.shape or s.device != x.device:
        raise ValueError(
            f"the score s should have the shape and device of x, {tuple(x.shape)} on {x.device}; "
            f"got {tuple(s.shape)} on {s.device}"
        )
    if s.requires_grad:
        raise ValueError("the score s requires grad; it is a constant of the penalty: s.detach()")
    highest = float(x.detach().max()) if finite and x.ndim == 4 and len(x) else 0.0
    if highest > BRIGHT:
        warnings.warn(
            f"the images go up to {highest:g}: λ and scores are for pixels in [0, 1]; divide bytes "
            "by 255, and normalise inside the model",
            stacklevel=3,
        )
    for name, tensor in (("x", x), ("the score s", s)) if finite else ():
        if not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise ValueError(f"{name} should be finite; {bad} of {tensor.numel()} entries are not")


def check_tensor(name: str, given: object) -> None:
    """Raise for anything but a tensor."""
    if not isinstance(given, Tensor):
        raise ValueError(f"{name} should be a tensor; got {type(given).__name__}")


def check_labels(y: Tensor | None, x: Tensor) -> None:
    """Raise unless there is one label for each input."""
    if y is not None and (y.ndim == 0 or len(y) != len(x)):
        raise ValueError(
            f"y should hold a label for each of the {len(x)} inputs; got shape {tuple(y.shape)}"
        )


def check_options(
    operator: str, backend: str, probes: int, step: float | None, chunk: int | None
) -> None:
    """Raise for an option that does not exist, saying which do."""
    check_choice("operator", operator, get_args(Operator))
    check_choice("backend", backend, ("auto", *get_args(Backend)))
    check_count("probes", probes)
    if chunk is not None:
        check_count("chunk", chunk)
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"step should be positive and finite; got {step}")


def check_penalty(
    *,
    probe: Probe | None,
    distribution: str,
    center: str | float,
    momentum: float,
    every: int,
    fraction: float,
    batchnorm: str,
    generator: torch.Generator | None,
) -> None:
    """The same for the options that a penalty has beside those of a residual."""
    check_choice("distribution", distribution, get_args(Distribution))
    check_choice("batchnorm", batchnorm, get_args(Statistics))
    check_count("every", every)
    if isinstance(center, str) or not math.isfinite(center):
        check_choice("center", center, (*CENTERS, "a finite number"))
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum should lie in [0, 1); got {momentum}")
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction should lie in (0, 1]; got {fraction}")
    if probe is not None and (isinstance(probe, type) or not callable(probe)):
        raise ValueError(f"probe should be a callable (outputs, y) → (B,); got {probe!r}")
    if not isinstance(generator, torch.Generator | None):
        raise ValueError(f"generator should be a torch.Generator or None; got {generator!r}")


def check_count(name: str, given: object) -> None:
    """Raise unless `given` is a whole number of at least 1."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name} should be a whole number of at least 1; got {given!r}")


def check_choice(name: str, given: object, choices: tuple[str, ...]) -> None:
    """Raise unless `given` is one of `choices`."""
    if given not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}; got {given!r}")
