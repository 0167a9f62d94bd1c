"""The residual by reverse mode: the paper's way, and the oracle with every second derivative."""

import torch
from torch import Tensor

from .terms import Function, Operator, Terms, per_example, values

DETACHED = (
    "f(x) does not depend on x through autograd: is the model detached, or run under no_grad or "
    "inference_mode inside f?"
)


def reverse(
    f: Function, x: Tensor, s: Tensor, v: Tensor, operator: Operator, chunk: int | None = None
) -> Terms:
    """r = (1/K) Σ_k v_kᵀ ∇²f v_k + s·∇f by a gradient and K Hessian-vector products.

    v: (K, B, *). `chunk` products are taken in one batched sweep (None: all of them).
    """
    x, gradient = gradient_with_graph(f, x)
    drift = per_example(gradient * s)
    if operator == "first_order":
        return Terms.of(drift, None)
    laplacians = [
        (hessian_vector_products(gradient, x, vs) * vs).flatten(2).sum(2)
        for vs in v.split(chunk or len(v))
    ]
    return Terms.of(drift, torch.cat(laplacians))


def exact(f: Function, x: Tensor, s: Tensor, operator: Operator) -> Terms:
    """r = Σ_i ∂²f/∂x_i² + s·∇f with all d second derivatives, one after another.

    An oracle for tests and small d: the cost is d Hessian-vector products.
    """
    x, gradient = gradient_with_graph(f, x)
    drift = per_example(gradient * s)
    if operator == "first_order":
        return Terms.of(drift, None)
    laplacian = torch.zeros_like(drift)
    for i in range(x[0].numel()):
        unit = torch.zeros(x.flatten(1).shape, dtype=x.dtype, device=x.device)
        unit[:, i] = 1.0
        row = hessian_vector_products(gradient, x, unit.view(1, *x.shape))[0]
        laplacian = laplacian + row.flatten(1)[:, i]
    return Terms.of(drift, laplacian[None])


def gradient_with_graph(f: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a leaf, and ∇f(x) with its graph."""
    x = x.detach().requires_grad_()
    # Of a copy: the model may begin with an operation in place.
    value = _attached(values(f, x.clone()))
    (gradient,) = torch.autograd.grad(
        value.sum(), x, create_graph=True, allow_unused=True, materialize_grads=True
    )
    return x, gradient


def input_gradient(f: Function, x: Tensor) -> Tensor:
    """∇f(x), (B, *), as a constant."""
    with torch.inference_mode(False), torch.enable_grad():
        x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
        value = _attached(values(f, x.clone()))
        (gradient,) = torch.autograd.grad(value.sum(), x, allow_unused=True)
    if gradient is None:
        raise ValueError(DETACHED)
    return gradient


def _attached(value: Tensor) -> Tensor:
    if not value.requires_grad:
        raise ValueError(DETACHED)
    return value


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
