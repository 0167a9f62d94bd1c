"""The pointwise Stein residual r(x) = Δf(x) + s(x)·∇f(x), and four ways to compute it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from taser._runtime import full_precision, rows_like
from taser.probes import Probed

from ._checks import (
    Backend,
    Distribution,
    Operator,
    Watched,
    check_choice,
    check_inputs,
    check_labels,
    check_layers,
    check_options,
    check_piecewise_linear,
    check_step,
    curved_layer,
    has_kinks,
    is_curved,
    plain_kernels,
    spread,
    warn_of_tf32,
)
from ._model_state import any_compiled, without_checkpointing

logger = logging.getLogger("taser")
NO_GRADIENT = (
    "f(x) does not depend on x through autograd: is the model detached, or run under no_grad or "
    "inference_mode inside f?"
)
Function = Callable[[Tensor], Tensor]
"""A scalar function of each input, (B, *) → (B,)."""


def stein_residual(
    f: Function, x: Tensor, s: Tensor, *, operator: Operator = "langevin",
    backend: Literal["auto", Backend] = "reverse", probes: int = 1,
    distribution: Distribution = "rademacher", generator: torch.Generator | None = None,
    step: float | None = None, chunk: int | None = None,
) -> Tensor:  # fmt: skip
    """r(x) = Δf(x) + s(x)·∇f(x) for every input of a batch, differentiable in f's parameters.

    f: (B, *) → (B,), each number a function of its own row; x: (B, *); s: like x, the score there,
    without a graph. Returns (B,). Under `torch.no_grad()` the same values without a graph.

    operator
        "langevin" as above, or "first_order" for s·∇f alone.
    backend
        "reverse": gradient and Hessian-vector products (the paper's way). "difference": one second
        difference of values of f, the cheapest, right through every layer, with a step t.
        "piecewise_linear": exact for ReLU networks; f has to be a :class:`taser.probes.Probed`.
        "exact": all d second derivatives, for small d. "auto": the fastest that is right for f.
        On a ReLU network "difference" includes the kinks within t, as the Laplacian of f smoothed
        at that scale; the others ignore them: two regularisers, not two accuracies.
    probes, distribution, generator
        K Hutchinson directions for each input, "rademacher" or "gaussian", drawn from `generator`.
    step
        t of the difference, in the units of x; by default a share of their :func:`spread` that
        depends on the operator, on the precision and on kinks, see :func:`default_step`.
    chunk
        Probes that are computed together; None for all. Fewer take less memory.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    >>> stein_residual(lambda x: x.square().sum(1), x, -x).detach()  # Δf = 4, s·∇f = −2‖x‖²
    tensor([ 2., -4.])
    """
    check_inputs(x, s)
    if isinstance(f, Probed):
        check_labels(f.y, x)
    check_options(operator, backend, probes, step, chunk)
    with without_checkpointing():
        choice = choose_backend(f, x, operator, backend)
        return residuals(
            f, x, s, choice, operator=operator, probes=probes, distribution=distribution,
            generator=generator, step=step, chunk=chunk,
        ).mean(0)  # fmt: skip


@dataclass(frozen=True)
class BackendChoice:
    """The backend for a model, chosen at its first call.

    kinked: whether the model's first derivative jumps, for the step; certain: False if the next
    call should choose again.
    """

    backend: Backend
    kinked: bool = False
    certain: bool = True


def residuals(
    f: Function, x: Tensor, s: Tensor, choice: BackendChoice, *, operator: Operator, probes: int,
    distribution: Distribution, generator: torch.Generator | None, step: float | None,
    chunk: int | None, check: bool = True, f_x: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Estimates of r, (K, B), a row for each probe; a single one if there is no randomness.

    check: raise for layers that would make them wrong; f_x: f(x), (B,), if the caller has it, for
    the difference backend.
    """
    graph, backend = torch.is_grad_enabled(), choice.backend
    x = _full_precision(x)
    s = _full_precision(s).to(x.dtype)
    if check:
        model = f.model if isinstance(f, Probed) else f
        check_layers(model, backend)
        if backend == "difference":
            warn_of_tf32(model)
            check_step(step, x, operator)
        if backend == "piecewise_linear":
            check_piecewise_linear(_probed(f), x)
        elif isinstance(f, Probed):
            f = replace(f, model=Watched(f.model, backend, graph))
        else:
            f = Watched(f, backend, graph)
    v = x.new_empty(0)
    if operator == "langevin" and backend != "exact":
        v = directions(x, probes, distribution, generator)
    # In half precision rounding dominates the derivatives.
    with torch.autocast(x.device.type, enabled=False):
        if backend == "difference":
            best = default_step(x, operator, one_sided=f_x is not None, kinked=choice.kinked)
            t = best if step is None else step
            return difference(f, x, s, v, operator, t, chunk, f_x)
        with torch.enable_grad(), plain_kernels():
            if backend == "piecewise_linear":
                found = piecewise_linear(_probed(f), x, s, v, operator, chunk)
            elif backend == "exact":
                found = exact(f, x, s, operator)
            else:
                found = reverse(f, x, s, v, operator, chunk)
    return found if graph else found.detach()


def choose_backend(
    f: Function, x: Tensor, operator: Operator, wanted: Literal["auto", Backend]
) -> BackendChoice:
    """The fastest backend that is right for f, unless one is wanted.

    A difference is the cheapest. Across a kink of a ReLU network a second difference approximates a
    smoothed function, and its parameter gradient is noisy. So a piecewise linear network gets its
    exact Laplacian, and other networks with kinks `reverse`. A first difference across a kink is
    better than autograd, which ignores that kinks move with the weights. The choice is uncertain
    if no curvature can be measured at x, as when the last layer is zero.
    """
    if wanted != "auto" and wanted != "difference":
        return BackendChoice(wanted)
    if not isinstance(f, Probed):
        return BackendChoice("difference")
    x = _full_precision(x)
    kinked = has_kinks(f.model, x)
    if wanted == "difference" or operator == "first_order" or any_compiled(f.model):
        return BackendChoice("difference", kinked)
    try:
        check_layers(f.model, "reverse")
        curved = is_curved(f, x)
    except Exception:  # outputs that are no tensor, kernels without a second derivative
        return BackendChoice("difference", kinked)
    certain = curved is not None or curved_layer(f.model) is not None
    if curved is False and curved_layer(f.model) is None:
        return BackendChoice("piecewise_linear")
    return BackendChoice("reverse" if kinked else "difference", kinked, certain)


def _probed(f: Function) -> Probed:
    if not isinstance(f, Probed):
        raise ValueError(
            "backend='piecewise_linear' has to see model and probe apart: pass "
            "taser.probes.Probed(model, probe, y), or use taser.SteinPenalty"
        )
    return f


def _full_precision(tensor: Tensor) -> Tensor:
    """Detached, at least float32, and usable by autograd even if made in inference mode."""
    return full_precision(tensor.clone() if tensor.is_inference() else tensor.detach())


def values(f: Function, x: Tensor, name: str = "f") -> Tensor:
    """f(x), checked to be one number for each row of x; `name` is for the message."""
    value = f(x)
    if tuple(value.shape) != (len(x),):
        raise ValueError(
            f"{name} should return one number per example, shape ({len(x)},); got "
            f"{tuple(value.shape)}. Reduce a vector output with a probe from taser.probes"
        )
    return value


def per_example(product: Tensor) -> Tensor:
    """Sum over all but the first dimension: (B, *) → (B,)."""
    return product.flatten(1).sum(1)


def directions(
    x: Tensor, probes: int, distribution: Distribution = "rademacher",
    generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """K directions v for each input with E[v vᵀ] = I, so that E[vᵀ H v] = tr H.

    x: (B, *); returns (K, B, *) in x's dtype and on its device. Rademacher signs have the smaller
    variance, 2·Σ_{i≠j} H_ij², against the Gaussian's 2·Σ_ij H_ij².
    """
    check_choice("distribution", distribution, get_args(Distribution))
    shape = (probes, *x.shape)
    if distribution == "gaussian":
        return torch.randn(shape, dtype=x.dtype, device=x.device, generator=generator)
    bits = torch.randint(0, 2, shape, device=x.device, generator=generator)
    return bits.to(x.dtype).mul_(2).sub_(1)


def default_step(
    x: Tensor, operator: Operator, *, one_sided: bool = False, kinked: bool = False
) -> Tensor:
    """The t at which truncation and rounding balance on trained networks, a scalar.

    Second differences lose eps/t² to rounding and t² to truncation, first differences eps/t and
    t², or t if they are one-sided; so t ∝ eps^(1/4), eps^(1/3) and eps^(1/2), times the spread of
    x: in float32 0.015, 0.02 and 0.002 of it. With kinks (ReLU, max-pooling) a longer step makes
    the gradient of a difference less noisy: 0.1 of the spread. docs/operator.md has the errors,
    measured on trained networks.
    """
    eps = torch.finfo(x.dtype).eps
    if kinked:
        share = 0.1
    elif operator == "langevin":
        share = 0.8 * eps**0.25
    else:
        share = 5.8 * eps**0.5 if one_sided else 4.0 * eps ** (1 / 3)
    return share * spread(x)


def difference(
    f: Function, x: Tensor, s: Tensor, v: Tensor, operator: Operator, t: float | Tensor,
    chunk: int | None = None, f_x: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """r from values of f alone.

    Along x(t) = x + t v + (t²/2) s the second derivative of f at 0 is vᵀ∇²f v + s·∇f, so the
    whole one-probe residual is  [f(x + tv + t²s/2) + f(x − tv + t²s/2) − 2 f(x)] / t².
    With t² = 2h the two points are antithetic Langevin steps x ± √(2h) v + h s.

    v: (K, B, *). Ordinary forwards and one ordinary backward: right through every layer whose
    first derivative is right. `chunk` probes share one call of f (None: all) when f is
    :class:`~taser.probes.Probed`; any other f is called once for each point.
    f_x: f(x), (B,), if the caller has it: then a first difference is one-sided, half the work.
    """
    if operator == "first_order":
        return _directional(f, x, s, t, f_x)[None]
    if f_x is None:
        f_x = values(f, x.clone())  # a copy: the model may begin with an operation in place
    moved = x + (t * t / 2) * s
    rows = []
    for vs in v.split(chunk or len(v)):
        forth, back = _evaluate(f, torch.cat([moved + t * vs, moved - t * vs])).chunk(2)
        rows.append((forth + back - 2 * f_x) / (t * t))
    return torch.cat(rows)


def _directional(
    f: Function, x: Tensor, s: Tensor, t: float | Tensor, f_x: Tensor | None
) -> Tensor:
    """s·∇f = [f(x + t u) − f(x − t u)]·|s|/(2t) along u = s/|s|, |·| the root mean square.

    With f(x) given, [f(x + t u) − f(x)]·|s|/t.
    """
    size = s.flatten(1).square().mean(1).sqrt()
    u = s / rows_like(size.clamp_min(torch.finfo(s.dtype).tiny), s)
    if f_x is not None:
        return (values(f, x + t * u) - f_x) * (size / t)
    forth, back = _evaluate(f, torch.stack([x + t * u, x - t * u]))
    return (forth - back) * (size / (2 * t))


def _evaluate(f: Function, points: Tensor) -> Tensor:
    """f at n points of every example: (n, B, *) → (n, B)."""
    if isinstance(f, Probed):
        return values(f, points.flatten(0, 1)).view(points.shape[:2])
    return torch.stack([values(f, point) for point in points])


def reverse(
    f: Function, x: Tensor, s: Tensor, v: Tensor, operator: Operator, chunk: int | None = None
) -> Tensor:
    """r = (1/K) Σ_k v_kᵀ ∇²f v_k + s·∇f by a gradient and K Hessian-vector products.

    v: (K, B, *). `chunk` products are taken in one batched sweep (None: all of them).
    """
    x, gradient = probe_gradient(f, x, graph=True)
    drift = per_example(gradient * s)
    if operator == "first_order":
        return drift[None]
    laplacians = [
        (hessian_vector_products(gradient, x, vs) * vs).flatten(2).sum(2)
        for vs in v.split(chunk or len(v))
    ]
    return torch.cat(laplacians) + drift


def exact(f: Function, x: Tensor, s: Tensor, operator: Operator) -> Tensor:
    """r = Σ_i ∂²f/∂x_i² + s·∇f by `reverse` along every axis, (1, B): for tests and small d."""
    return reverse(f, x, s, axes(x), operator, chunk=1).mean(0, keepdim=True)


def axes(x: Tensor) -> Tensor:
    """√d e_i for i = 1 … d, (d, B, *): directions with the mean v vᵀ = I exactly."""
    d = x[0].numel()
    unit = torch.eye(d, dtype=x.dtype, device=x.device) * d**0.5
    return unit.view(d, 1, *x.shape[1:]).expand(d, *x.shape)


def probe_gradient(f: Function, x: Tensor, *, graph: bool = False) -> tuple[Tensor, Tensor]:
    """Returns (x, ∇f(x)). With graph=True ∇f is differentiable in the returned x."""
    with torch.inference_mode(False), torch.enable_grad():
        x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
        value = values(f, x.clone())  # of a copy: the model may begin with an operation in place
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(
                value.sum(), x, create_graph=graph, allow_unused=True, materialize_grads=graph
            )
    if gradient is None:
        raise ValueError(NO_GRADIENT)
    return x, gradient


def hessian_vector_products(gradient: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """∇²f v_k for v: (k, B, *), with a graph for the parameters; zero where f is linear."""
    if not gradient.requires_grad:
        return torch.zeros_like(v)

    def product(v: Tensor, *, batched: bool) -> Tensor:
        (found,) = torch.autograd.grad(
            gradient, x, v, create_graph=True, materialize_grads=True, is_grads_batched=batched
        )
        return found.expand_as(v)  # zeros are made like x, once for all v

    if len(v) > 1:
        try:
            return product(v, batched=True)
        except RuntimeError:  # a kernel that cannot be batched (GroupNorm's), or no memory for it
            pass
    return torch.stack([product(row, batched=False) for row in v])


def piecewise_linear(
    f: Probed, x: Tensor, s: Tensor, v: Tensor, operator: Operator, chunk: int | None = None
) -> Tensor:
    """r for f(x) = φ(z(x)) when z, the network's outputs, has zero Hessian almost everywhere.

    Then only φ is curved:  vᵀ∇²f v = (Jv)ᵀ ∇²φ(z) (Jv)  and  s·∇f = ∇φ(z)·(Js), with J the Jacobian
    of the outputs. For the margin the first is Var_q(Jv), q the softmax over j ≠ y, whose mean over
    v is  Σ_j q_j ‖∇z_j‖² − ‖Σ_j q_j ∇z_j‖².

    v: (K, B, *); `chunk` tangents are pushed through the network together (None: all).
    """
    tangents = s[None] if operator == "first_order" else torch.cat([s[None], v])
    pushed = [_outputs_and_tangents(f, x, part) for part in tangents.split(chunk or len(tangents))]
    z = pushed[0][0]
    js, jv = torch.cat([moved for _, moved in pushed]).tensor_split([1])
    slope = _probe_slope(f, z)
    drift = (slope * js[0]).reshape(len(x), -1).sum(1)
    return drift[None] if operator == "first_order" else drift + _probe_curvature(f, z, jv)


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
    (product,) = torch.autograd.grad(
        slope, copies, a.flatten(0, 1), create_graph=True, allow_unused=True
    )
    return flat if product is None else (product.view_as(a) * a).reshape(*a.shape[:2], -1).sum(2)
