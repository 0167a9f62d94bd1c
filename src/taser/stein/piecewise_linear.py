"""The residual of a piecewise linear network: exact, with no second derivative of the network."""

import torch
from torch import Tensor

from taser.probes import Probed

from .terms import Operator, Terms


def piecewise_linear(
    f: Probed, x: Tensor, s: Tensor, v: Tensor, operator: Operator, chunk: int | None = None
) -> Terms:
    """r for f(x) = φ(z(x)) when z, the network's outputs, has zero Hessian almost everywhere.

    Then only the probe φ bends:  vᵀ∇²f v = (Jv)ᵀ ∇²φ(z) (Jv)  and  s·∇f = ∇φ(z)·(Js), with J the
    Jacobian of the outputs. For the margin the first is Var_q(Jv), q the softmax over j ≠ y, whose
    mean over v is  Σ_j q_j ‖∇z_j‖² − ‖Σ_j q_j ∇z_j‖².
    """
    if operator == "first_order":
        z, (js,) = _outputs_and_tangents(f, x, s[None])
        return Terms.of(_probe_slope(f, z, js), None)
    laplacians: list[Tensor] = []
    drift = None
    for vs in v.split(chunk or len(v)):
        tangents = vs if drift is not None else torch.cat([s[None], vs])
        z, moved = _outputs_and_tangents(f, x, tangents)
        if drift is None:
            drift, moved = _probe_slope(f, z, moved[0]), moved[1:]
        laplacians.append(torch.stack([_probe_curvature(f, z, jv) for jv in moved]))
    assert drift is not None
    return Terms.of(drift, torch.cat(laplacians))


def _outputs_and_tangents(f: Probed, x: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """z(x), (B, m), and J t for every tangent t: (n, B, *) → (n, B, m), by forward mode."""

    def push(tangent: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jvp(f.model, (x,), (tangent,))

    z, moved = torch.func.vmap(push, out_dims=(None, 0))(tangents)
    return z, moved


def _probe_slope(f: Probed, z: Tensor, a: Tensor) -> Tensor:
    """∇φ(z)·a for each example."""
    return torch.func.jvp(lambda out: f.probe(out, f.y), (z,), (a,))[1]


def _probe_curvature(f: Probed, z: Tensor, a: Tensor) -> Tensor:
    """aᵀ ∇²φ(z) a for each example."""
    return torch.func.jvp(lambda out: _probe_slope(f, out, a), (z,), (a,))[1]
