"""The model as attacks ask it thousands of times: frozen, folded, and checked to be the same."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from taser.attacks import Model, input_gradient, margin
from taser.models import folded

TRIED = 32  # examples that a model is checked and prepared with
OUTPUTS = 1e-4  # of the largest logit: float32 rounding through a deep network stays well below
GRADIENTS = 1e-2  # of the gradient's length: rounding moves a few kinks of ReLU
AT_ONCE = 64  # images on a CPU: LeNet-5 answers twice as fast as with 192
VALUES = AT_ONCE * 28 * 28  # of smaller images as many more: 8×8 digits gain a fifth to a half


def prepare(model: Model, x: Tensor, y: Tensor) -> Model:
    """The quickest form of `model` that gives the same logits and gradients on the first examples.

    x: (n, *); y: (n,). The model itself is left as it is. Whatever cannot be copied, traced or
    folded is used plainly: preparation saves time and never changes what is measured.
    """
    if not isinstance(model, nn.Module):
        return model
    try:
        plain = copy.deepcopy(model).eval().requires_grad_(False)
    except Exception:  # a module may refuse to be copied in any way it likes
        return model
    for candidate in _candidates(plain, x):
        try:
            same = _same(plain, candidate, x[:TRIED], y[:TRIED])
        except Exception:  # a `view` that wants another memory format, a size that was fixed
            continue
        if same:
            return candidate
    return plain


def _candidates(plain: nn.Module, x: Tensor) -> Iterator["_Quick"]:
    """From the most to the least that can be done."""
    for inner in (folded(plain), plain):
        for channels_last in (True, False) if x.ndim == 4 else (False,):
            if inner is not None:
                yield _Quick(inner, channels_last)


class _Quick(nn.Module):
    """Few images at a time, whose activations stay in a CPU's cache, with channels innermost."""

    def __init__(self, inner: nn.Module, channels_last: bool) -> None:
        super().__init__()
        self.inner, self.channels_last = inner, channels_last
        if channels_last:  # of a copy: formats belong to tensors, which candidates share
            self.inner = copy.deepcopy(inner).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """As the model: (B, *) → (B, C)."""
        size = max(AT_ONCE, VALUES // x.shape[1:].numel())
        if x.is_cpu and len(x) > size:
            return torch.cat([self(part) for part in x.split(size)])
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return self.inner(x)


def _same(plain: Model, quick: Model, x: Tensor, y: Tensor) -> bool:
    """Whether logits and gradients are the same up to rounding. x: (B, *); y: (B,).

    Gradients are compared as well: tracing forgets a `no_grad` inside a model, which would show
    an attack what the model hides. They are asked a little off the examples, because at flat
    pixels kinks and ties abound, where rounding picks one gradient of several. A batch of one
    finds sizes that tracing has fixed.
    """
    with torch.no_grad():
        wanted, found, alone = plain(x.clone()), quick(x.clone()), quick(x[:1].clone())
    allowed = OUTPUTS * (float(wanted.abs().max()) + 1e-12)
    for one, other in ((found, wanted), (alone, wanted[:1])):
        if not float((one - other).abs().max()) <= allowed:
            return False
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    slope, same = (input_gradient(f, x + 0.01 * noise, y, margin) for f in (plain, quick))
    return float((same - slope).norm()) <= GRADIENTS * float(slope.norm()) + 1e-12
