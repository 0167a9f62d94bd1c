"""Layers written in plain operations, where the fused ones lack the derivatives we need."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run LayerNorm, InstanceNorm and attention from operations that autograd knows throughout.

    The fused LayerNorm and InstanceNorm have a silently wrong third derivative (up to 70 % off in
    the parameter gradient of a Laplacian: pytorch#186256, #175754), and the fused attention has
    no second derivative. Only what is called inside this context is replaced.
    """
    with sdpa_kernel(SDPBackend.MATH), _PlainNorms():
        yield


class _PlainNorms(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        return _PLAIN.get(func, func)(*args, **(kwargs or {}))


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001 — torch.layer_norm passes it
) -> Tensor:
    """(x − mean)/√(var + eps)·weight + bias over the last dimensions."""
    y = _standardise(x, tuple(range(-len(normalized_shape), 0)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean)/√(var + eps)·weight + bias over the spatial dimensions of every channel."""
    if not use_input_stats:  # running statistics: an affine map, which every kernel gets right
        return F.instance_norm(
            x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    y = _standardise(x, tuple(range(2, x.ndim)), eps)
    channels = (1, -1, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.view(channels)
    return y if bias is None else y + bias.view(channels)


def _standardise(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)


_PLAIN: dict[Callable, Callable] = {
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.instance_norm: instance_norm,
}
