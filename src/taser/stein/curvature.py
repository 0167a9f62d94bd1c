"""Whether a network is piecewise linear in its input: asked of the network, not of its layers."""

import torch
from torch import Tensor, nn

from taser.probes import Probed

from .guards import UnsupportedLayer, place
from .plain_kernels import plain_kernels

PIECEWISE_LINEAR = (
    nn.Linear, nn.Bilinear, nn.Identity, nn.Flatten, nn.Unflatten, nn.ReLU, nn.LeakyReLU, nn.PReLU,
    nn.RReLU, nn.ReLU6, nn.Hardtanh, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.dropout._DropoutNd, nn.Upsample, nn.PixelShuffle, nn.ZeroPad2d,
)  # fmt: skip
"""Layers with zero second derivative; used only to name the one that is not."""


def is_piecewise_linear(f: Probed, x: Tensor) -> bool:
    """Whether the outputs' Hessian vanishes at x along a fixed direction, for a mix of outputs.

    x: (B, *). For a network of ReLUs and affine maps it is zero to the last bit; a smooth
    activation anywhere makes it non-zero at almost every x.
    """
    generator = torch.Generator(device=x.device).manual_seed(0)
    x = x[:4].detach().requires_grad_()
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), plain_kernels():
        outputs = f.model(x)
        mix = torch.randn(outputs.shape, generator=generator, device=x.device).to(outputs.dtype)
        (gradient,) = torch.autograd.grad((outputs * mix).sum(), x, create_graph=True)
        if not gradient.requires_grad:
            return True
        v = torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype)
        (bend,) = torch.autograd.grad((gradient * v).sum(), x, allow_unused=True)
    return bend is None or not bool(bend.any())


def check_piecewise_linear(f: Probed, x: Tensor) -> None:
    """Raise, naming the first layer that bends, unless the network is piecewise linear at x."""
    if is_piecewise_linear(f, x):
        return
    named = f.model.named_modules() if isinstance(f.model, nn.Module) else ()
    leaves = [(name, module) for name, module in named if not any(module.children())]
    name, kind = next(
        ((name, type(m).__name__) for name, m in leaves if not isinstance(m, PIECEWISE_LINEAR)),
        ("", "an operation in its forward"),
    )
    raise UnsupportedLayer(
        f"backend='piecewise_linear' leaves out the curvature of the network, and "
        f"{place(name)} ({kind}) has some. Use backend='difference' or 'reverse'"
    )
