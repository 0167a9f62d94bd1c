"""The residual of a piecewise linear network: exact, with no second derivative of the network."""

from typing import Any

import torch
from torch import Tensor

from taser.probes import Probed

from .terms import Operator, Terms, values


def piecewise_linear(
    f: Probed, x: Tensor, s: Tensor, v: Tensor, operator: Operator, chunk: int | None = None
) -> Terms:
    """r for f(x) = φ(z(x)) when z, the network's outputs, has zero Hessian almost everywhere.

    Then only the probe φ bends:  vᵀ∇²f v = (Jv)ᵀ ∇²φ(z) (Jv)  and  s·∇f = ∇φ(z)·(Js), with J the
    Jacobian of the outputs. For the margin the first is Var_q(Jv), q the softmax over j ≠ y, whose
    mean over v is  Σ_j q_j ‖∇z_j‖² − ‖Σ_j q_j ∇z_j‖².

    v: (K, B, *); `chunk` tangents are pushed through the network together (None: all).
    """
    tangents = s[None] if operator == "first_order" else torch.cat([s[None], v])
    pushed = [_outputs_and_tangents(f, x, part) for part in tangents.split(chunk or len(tangents))]
    z = pushed[0][0]
    js, jv = torch.cat([moved for _, moved in pushed]).tensor_split([1])
    slope = _probe_slope(f, z)
    drift = (slope * js[0]).reshape(len(x), -1).sum(1)
    return Terms.of(drift, None if operator == "first_order" else _probe_curvature(f, z, jv))


def _outputs_and_tangents(f: Probed, x: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """z(x), (B, …), and J t for every tangent t: (n, B, *) → (n, B, …), by forward mode."""

    def push(tangent: Tensor) -> Any:
        return torch.func.jvp(lambda x: f.model(x.clone()), (x,), (tangent,))

    unbatched: Any = (None, 0)  # the outputs are the same for every tangent
    z, moved = torch.func.vmap(push, out_dims=unbatched)(tangents)
    return (z if z.requires_grad else z.requires_grad_()), moved


def _probe_slope(f: Probed, z: Tensor) -> Tensor:
    """∇φ(z), with a graph: (n·B, …) → (n·B, …)."""
    value = values(lambda z: f.probe(z, f.labels(len(z))), z)
    return torch.autograd.grad(value.sum(), z, create_graph=True)[0]


def _probe_curvature(f: Probed, z: Tensor, a: Tensor) -> Tensor:
    """aᵀ ∇²φ(z) a for each example and tangent: (K, B, …) → (K, B)."""
    copies = z.repeat(len(a), *[1] * (z.ndim - 1))
    slope = _probe_slope(f, copies)
    flat = a.new_zeros(a.shape[:2])
    if not slope.requires_grad:
        return flat
    (bend,) = torch.autograd.grad(
        slope, copies, a.flatten(0, 1), create_graph=True, allow_unused=True
    )
    return flat if bend is None else (bend.view_as(a) * a).reshape(*a.shape[:2], -1).sum(2)
