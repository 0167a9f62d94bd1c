"""The pointwise Stein residual: r(x) = Δf(x) + s(x)·∇f(x)."""

import logging
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from taser._tensors import full_precision
from taser.probes import Probed

from ._backends import (
    Distribution,
    Function,
    Operator,
    Terms,
    difference,
    directions,
    exact,
    piecewise_linear,
    reverse,
)
from ._checks import check_inputs, check_labels, check_options
from ._layer_checks import (
    Backend,
    UnsupportedLayer,
    Watched,
    bending_layer,
    check_piecewise_linear,
    check_structure,
    curvature_seen,
    plain_kernels,
)
from ._model_state import any_compiled

logger = logging.getLogger("taser")


def stein_residual(
    f: Function,
    x: Tensor,
    s: Tensor,
    *,
    operator: Operator = "langevin",
    backend: Backend | Literal["auto"] = "reverse",
    probes: int = 1,
    distribution: Distribution = "rademacher",
    generator: torch.Generator | None = None,
    step: float | None = None,
    chunk: int | None = None,
) -> Tensor:
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
        On a ReLU network "difference" sees the kinks within t, as the Laplacian of f smoothed at
        that scale; the others see none. These are two regularisers, not two accuracies.
    probes, distribution, generator
        K Hutchinson directions for each input, "rademacher" or "gaussian", drawn from `generator`.
    step
        t of the difference, in the units of x; by default 0.03 in float32 (0.01 first-order).
    chunk
        How many probes are worked on at once; None for all. Fewer take less memory.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    >>> stein_residual(lambda x: x.square().sum(1), x, -x).detach()  # Δf = 4, s·∇f = −2‖x‖²
    tensor([ 2., -4.])
    """
    check_inputs(x, s)
    if isinstance(f, Probed):
        check_labels(f.y, x)
    check_options(operator, backend, probes, step, chunk)
    if backend == "auto":
        backend, _ = choose_backend(f, x, operator)
        logger.info("backend='auto' chose %r for the %s operator", backend, operator)
    terms = residual_terms(
        f, x, s, operator=operator, backend=backend, probes=probes, distribution=distribution,
        generator=generator, step=step, chunk=chunk,
    )  # fmt: skip
    return terms.residual


def residual_terms(
    f: Function,
    x: Tensor,
    s: Tensor,
    *,
    operator: Operator,
    backend: Backend,
    probes: int,
    distribution: Distribution,
    generator: torch.Generator | None,
    step: float | None,
    chunk: int | None,
    separate: bool = False,
    check: bool = True,
    centre: Tensor | None = None,
) -> Terms:
    """The residual of every probe apart; `check` looks for layers that would falsify it.

    centre: f(x), (B,), where it is known already; only a difference has a use for it.
    """
    graph = torch.is_grad_enabled()
    x = _full_precision(x)
    s = _full_precision(s).to(x.dtype)
    if check:
        f = _guarded(f, x, backend, graph)
    v = x.new_empty(0)
    if operator == "langevin" and backend != "exact":
        v = directions(x, probes, distribution, generator)
    # Half precision would drown the derivatives, so this is an island of full precision.
    with torch.autocast(x.device.type, enabled=False):
        if backend == "difference":
            return difference(f, x, s, v, operator, step, chunk, separate, centre)
        with torch.enable_grad(), plain_kernels():
            if backend == "piecewise_linear":
                terms = piecewise_linear(_probed(f), x, s, v, operator, chunk)
            elif backend == "exact":
                terms = exact(f, x, s, operator)
            else:
                terms = reverse(f, x, s, v, operator, chunk)
    return terms if graph else _detached(terms)


def choose_backend(f: Function, x: Tensor, operator: Operator) -> tuple[Backend, bool]:
    """The fastest backend that is right for f, and whether that is certain.

    A difference is cheapest, but a second difference across a kink sees another function; so a
    piecewise linear network gets an exact route to its Laplacian, and everything else a
    difference. Uncertain is a network whose curvature cannot be seen at x, such as one whose last
    layer still is zero.
    """
    if not isinstance(f, Probed) or operator == "first_order":
        return "difference", True
    if any_compiled(f.model) or bending_layer(f.model):
        return "difference", True
    try:
        curved = curvature_seen(f, _full_precision(x))
    except UnsupportedLayer:
        raise
    except Exception:  # outputs that are no tensor, kernels without a second derivative
        return "difference", True
    if curved is False:
        return "piecewise_linear", True
    return "difference", curved is not None


def _guarded(f: Function, x: Tensor, backend: Backend, graph: bool) -> Function:
    """f, checked for structure now and for kernels at its first call."""
    check_structure(f.model if isinstance(f, Probed) else f, backend)
    if backend == "piecewise_linear":
        check_piecewise_linear(_probed(f), x)
        return f
    if isinstance(f, Probed):
        return replace(f, model=Watched(f.model, backend, graph))
    return Watched(f, backend, graph)


def _probed(f: Function) -> Probed:
    if not isinstance(f, Probed):
        raise ValueError(
            "backend='piecewise_linear' has to see model and probe apart: pass "
            "taser.probes.Probed(model, probe, y), or use taser.SteinPenalty"
        )
    return f


def _full_precision(tensor: Tensor) -> Tensor:
    """Without a graph, at least float32, and usable by autograd wherever it was made."""
    return full_precision(tensor.clone() if tensor.is_inference() else tensor.detach())


def _detached(terms: Terms) -> Terms:
    parts = (terms.per_probe, terms.laplacian, terms.drift)
    return Terms(*(None if part is None else part.detach() for part in parts))  # type: ignore[arg-type]
