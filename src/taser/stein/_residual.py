"""The pointwise Stein residual: r(x) = Δf(x) + s(x)·∇f(x)."""

import logging
import math
import warnings
from dataclasses import replace
from typing import Literal, get_args

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


BRIGHT = 10.0  # more than any usual normalisation makes of pixels


def check_inputs(x: Tensor, s: Tensor | None, finite: bool = True) -> None:
    """Raise unless x and s are (finite) floats of one shape and s carries no graph."""
    check_tensor("x", x)
    if not x.is_floating_point():
        raise ValueError(f"x should be floating point, images scaled to [0, 1]; got {x.dtype}")
    if x.ndim < 2 or not len(x):
        raise ValueError(f"x should be a batch of inputs, (B, *); got shape {tuple(x.shape)}")
    if s is not None:
        _check_score(s, x)
    highest = float(x.detach().max()) if finite and x.ndim == 4 else 0.0
    if highest > BRIGHT:
        warnings.warn(
            f"the images go up to {highest:g}: λ and scores are for pixels in [0, 1]; divide bytes "
            "by 255, and normalise inside the model",
            stacklevel=3,
        )
    for name, tensor in (("x", x), ("the score s", s)) if finite else ():
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise ValueError(f"{name} should be finite; {bad} of {tensor.numel()} entries are not")


def _check_score(s: Tensor, x: Tensor) -> None:
    if not isinstance(s, Tensor):
        raise ValueError(
            f"the score s should be a tensor like x, such as score(x); got {type(s).__name__}"
        )
    if not s.is_floating_point():
        raise ValueError(f"the score s should be floating point; got {s.dtype}")
    if s.shape != x.shape or s.device != x.device:
        raise ValueError(
            f"the score s should have the shape and device of x, {tuple(x.shape)} on {x.device}; "
            f"got {tuple(s.shape)} on {s.device}"
        )
    if s.requires_grad:
        raise ValueError("the score s requires grad; it is a constant of the penalty: s.detach()")


def check_tensor(name: str, given: object) -> None:
    """Raise for anything but a tensor."""
    if not isinstance(given, Tensor):
        raise ValueError(f"{name} should be a tensor; got {type(given).__name__}")


def check_labels(y: Tensor | None, x: Tensor) -> None:
    """Raise unless there is one label for each input."""
    if y is not None and (y.ndim == 0 or len(y) != len(x)):
        raise ValueError(
            f"y should hold a label for each of the {len(x)} inputs; got shape {tuple(y.shape)}"
        )


def check_options(
    operator: str, backend: str, probes: int, step: float | None, chunk: int | None
) -> None:
    """Raise for an option that does not exist, saying which do."""
    check_choice("operator", operator, get_args(Operator))
    check_choice("backend", backend, ("auto", *get_args(Backend)))
    check_count("probes", probes)
    if chunk is not None:
        check_count("chunk", chunk)
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"step should be positive and finite; got {step}")


def check_count(name: str, given: object) -> None:
    """Raise unless `given` is a whole number of at least 1."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name} should be a whole number of at least 1; got {given!r}")


def check_choice(name: str, given: object, choices: tuple[str, ...]) -> None:
    """Raise unless `given` is one of `choices`."""
    if given not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}; got {given!r}")
