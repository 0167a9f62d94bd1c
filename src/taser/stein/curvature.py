"""Whether a network is piecewise linear in its input."""

import torch
from torch import Tensor, nn

from taser.probes import Probed

from .guards import UnsupportedLayer, place
from .plain_kernels import plain_kernels
from .watch import Watched

PIECEWISE_LINEAR = (
    nn.Linear, nn.Identity, nn.Flatten, nn.Unflatten, nn.ReLU, nn.LeakyReLU, nn.PReLU,
    nn.ReLU6, nn.Hardtanh, nn.Threshold, nn.Softshrink, nn.Hardshrink,
    nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.padding._ConstantPadNd, nn.modules.padding._ReflectionPadNd,
    nn.modules.padding._ReplicationPadNd, nn.modules.padding._CircularPadNd,
    nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Fold, nn.Unfold,
)  # fmt: skip
"""torch's layers that are linear in their input, piece by piece."""

NO_LAYERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict,
    nn.modules.loss._Loss,
)  # fmt: skip
"""Held by networks without a part in the outputs: empty containers, and what trains them."""


def bending_layer(model: object) -> str | None:
    """The first layer of torch's own that is not piecewise linear, or None."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, module in named:
        layer = type(module).__module__.startswith("torch.nn.modules")  # nn.utils: of weights
        leaf = not any(module.children())
        if leaf and layer and not isinstance(module, PIECEWISE_LINEAR + NO_LAYERS):
            return f"{place(name)} ({type(module).__name__})"
    return None


@torch.enable_grad()
def curvature_seen(f: Probed, x: Tensor) -> bool | None:
    """Whether the outputs have a Hessian at x, along one direction and for one mix of outputs.

    x: (B, *). For a network of ReLUs and affine maps the answer is zero to the last bit; a smooth
    operation anywhere makes it non-zero at almost every x. None if there is nothing to see: the
    outputs do not move with x here, or do so linearly, or autograd has no second derivative.
    """
    generator = torch.Generator(device=x.device).manual_seed(0)
    x = x[:4].detach().requires_grad_()
    island = torch.autocast(x.device.type, enabled=False)
    with island, plain_kernels():
        outputs = Watched(f.model, "reverse", graph=False)(x.clone())
    mix = torch.randn(outputs.shape, generator=generator, device=x.device).to(outputs.dtype)
    (gradient,) = torch.autograd.grad((outputs * mix).sum(), x, create_graph=True)
    if not gradient.requires_grad or not bool(gradient.any()):
        return None
    v = torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype)
    (bend,) = torch.autograd.grad((gradient * v).sum(), x, allow_unused=True)
    return None if bend is None else bool(bend.any())


def check_piecewise_linear(f: Probed, x: Tensor) -> None:
    """Raise, naming the layer if one is known to bend, unless the network is piecewise linear."""
    where = bending_layer(f.model)
    if where is None and not curvature_seen(f, x):
        return
    where = where or f"an operation in {type(f.model).__name__}"
    raise UnsupportedLayer(
        "backend='piecewise_linear' leaves out the curvature of the network, and "
        f"{where} has some. Use backend='difference' or 'reverse'"
    )
