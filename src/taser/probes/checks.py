"""What a probe refuses, or warns about, when it first sees a model's outputs."""

import warnings

import torch
from torch import Tensor


def check_logits(z: Tensor, y: Tensor | None, name: str) -> None:
    """Raise unless z is (B, C) with C ≥ 2 and y holds B class numbers below C."""
    if not isinstance(z, Tensor):
        raise ValueError(
            f"{name} wants logits (B, C); the model gives a {type(z).__name__}. Wrap it: "
            "lambda x: model(x)[0], or model(x).logits"
        )
    if z.ndim != 2 or z.shape[1] < 2:
        raise ValueError(
            f"{name} wants logits of shape (B, C) with at least two classes; got "
            f"{tuple(z.shape)}. For a single output per example use taser.probes.Output()"
        )
    if y is not None:
        check_labels(y, z.shape[0], z.shape[1], name)
    if looks_like_probabilities(z):
        warnings.warn(
            f"{name} was given rows that are not negative and sum to one: probabilities, not "
            "logits. A saturated probe carries no sensitivity; take the softmax off the model",
            stacklevel=3,
        )


def check_labels(y: Tensor, batch: int, classes: int, name: str) -> None:
    """Raise unless y is (batch,) whole numbers in 0 … classes − 1."""
    if y.shape != (batch,) or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(
            f"{name} wants labels y of shape ({batch},) and an integer type; "
            f"got {tuple(y.shape)} of {y.dtype}"
        )
    lowest, highest = int(y.min()), int(y.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(
            f"{name} has {classes} classes, so labels should lie in 0…{classes - 1}; "
            f"got labels from {lowest} to {highest}"
        )


def looks_like_probabilities(z: Tensor) -> bool:
    """Every row non-negative and summing to one (within the type's rounding)."""
    z = z.detach()
    tolerance = 8 * torch.finfo(z.dtype).eps
    sums = z.to(torch.float32).sum(1)
    return bool((z >= 0).all()) and bool(((sums - 1).abs() <= max(tolerance, 1e-5)).all())
