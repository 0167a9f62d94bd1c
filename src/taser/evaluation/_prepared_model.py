"""The model as attacks see it: the same function, faster, and always with a gradient."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from taser.attacks import Model, input_gradient, margin
from taser.models._folding import fold_batchnorm
from taser.stein._model_state import check_module


class Differentiable(nn.Module):
    """The same outputs; where the model detaches its input, a gradient of zero instead of an error.

    Gradient attacks then stay at x, and the evaluation or audit reports it.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = check_module(model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, C), with a graph to x."""
        z = self._outputs(x)
        if z.is_inference():  # an inference tensor cannot join a graph
            z = z.clone()
        if z.requires_grad or not torch.is_grad_enabled():
            return z
        return z + 0 * x.flatten(1).sum(1, keepdim=True)

    def _outputs(self, x: Tensor) -> Tensor:
        """Of a copy, for the model may work in place; a model that uses numpy refuses a graph."""
        try:
            return self.model(x.clone())
        except RuntimeError as error:
            if not (x.requires_grad and "numpy" in str(error)):
                raise
            return self.model(x.detach().clone())


TRIED = 32  # examples that a model is checked with
OUTPUTS = 1e-4  # of the largest logit: float32 rounding through a deep network stays well below
GRADIENTS = 1e-2  # of the gradient's length: rounding moves a few kinks of ReLU
AT_ONCE = 64  # images on a CPU: LeNet-5 is twice as fast as with 192
VALUES = AT_ONCE * 28 * 28  # of smaller images more: 8×8 digits gain a fifth to a half


def prepare(model: Model, x: Tensor, y: Tensor) -> Model:
    """The fastest form of `model` that gives the same logits and gradients on the first examples.

    x: (n, *); y: (n,). BatchNorm is folded and channels are innermost where that works; the model
    itself is not changed.
    """
    module = check_module(model)
    try:
        plain = copy.deepcopy(module).eval().requires_grad_(False)
    except Exception:  # a module may refuse in any way
        return model
    for candidate in _candidates(plain, x):
        try:
            same = _same(plain, candidate, x[:TRIED], y[:TRIED])
        except Exception:  # a `view` that wants another memory format, a size that was fixed
            continue
        if same:
            return candidate
    return plain


def _candidates(plain: nn.Module, x: Tensor) -> Iterator["_Prepared"]:
    """The fastest first."""
    for inner in (fold_batchnorm(plain), plain):
        for channels_last in (True, False) if x.ndim == 4 else (False,):
            if inner is not None:
                yield _Prepared(inner, channels_last)


class _Prepared(nn.Module):
    """Few images at a time, whose activations fit a CPU's cache, with channels innermost."""

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


def _same(plain: Model, prepared: Model, x: Tensor, y: Tensor) -> bool:
    """Whether logits and gradients are the same up to rounding. x: (B, *); y: (B,).

    Gradients are compared as well: tracing forgets a `no_grad` inside a model, which would show
    an attack what the model hides. They are taken a little off the examples, because flat pixels
    lie on kinks and ties, where rounding picks one gradient of several. A batch of one finds sizes
    that tracing has fixed.
    """
    with torch.no_grad():
        wanted, found, alone = plain(x.clone()), prepared(x.clone()), prepared(x[:1].clone())
    allowed = OUTPUTS * (float(wanted.abs().max()) + 1e-12)
    for one, other in ((found, wanted), (alone, wanted[:1])):
        if not float((one - other).abs().max()) <= allowed:
            return False
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    slope, same = (input_gradient(f, x + 0.01 * noise, y, margin) for f in (plain, prepared))
    return float((same - slope).norm()) <= GRADIENTS * float(slope.norm()) + 1e-12
