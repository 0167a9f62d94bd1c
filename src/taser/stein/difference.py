"""The residual as one central second difference along a curve that bends with the score."""

import torch
from torch import Tensor

from taser.probes import Probed
from taser.shapes import rows_like

from .terms import Function, Operator, Terms, values


def default_step(dtype: torch.dtype, operator: Operator, *, one_sided: bool = False) -> float:
    """The step at which truncation and rounding balance, for inputs of order one.

    Second differences lose eps/t² to rounding and t² to truncation, first differences eps/t and
    t², or t if they are one-sided; so t ∝ eps^(1/4), eps^(1/3) and eps^(1/2). In float32: 0.03,
    0.01 and 0.003.
    """
    eps = torch.finfo(dtype).eps
    if operator == "langevin":
        return 1.6 * eps**0.25
    return 9.0 * eps**0.5 if one_sided else 2.0 * eps ** (1 / 3)


def difference(
    f: Function,
    x: Tensor,
    s: Tensor,
    v: Tensor,
    operator: Operator,
    step: float | None = None,
    chunk: int | None = None,
    separate: bool = False,
    centre: Tensor | None = None,
) -> Terms:
    """r from values of f alone.

    Along x(t) = x + t v + (t²/2) s the second derivative of f at 0 is vᵀ∇²f v + s·∇f, so the
    whole one-probe residual is  [f(x + tv + t²s/2) + f(x − tv + t²s/2) − 2 f(x)] / t².
    With t² = 2h the two points are antithetic Langevin steps x ± √(2h) v + h s.

    v: (K, B, *). Ordinary forwards and one ordinary backward: right through every layer whose
    first derivative is right. `chunk` probes share one call of f (None: all) when f is
    :class:`~taser.probes.Probed`; any other f is called once for each point.
    `separate` spends one more forward, without a graph, to tell the two terms apart.
    centre: f(x), (B,), if it is known: then a first difference is one-sided, half the work.
    """
    one_sided = operator == "first_order" and centre is not None
    t = default_step(x.dtype, operator, one_sided=one_sided) if step is None else step
    if operator == "first_order":
        return Terms.of(_directional(f, x, s, t, centre), None)
    if centre is None:
        centre = values(f, x.clone())  # a copy: the model may begin with an operation in place
    bend = x + (t * t / 2) * s
    rows = []
    for vs in v.split(chunk or len(v)):
        forth, back = _evaluate(f, torch.cat([bend + t * vs, bend - t * vs])).chunk(2)
        rows.append((forth + back - 2 * centre) / (t * t))
    per_probe = torch.cat(rows)
    if not separate:
        return Terms(per_probe)
    with torch.no_grad():
        drift = (values(f, bend) - centre) * (2 / (t * t))
        return Terms(per_probe, per_probe.mean(0) - drift, drift)


def _directional(f: Function, x: Tensor, s: Tensor, t: float, centre: Tensor | None) -> Tensor:
    """s·∇f = [f(x + t u) − f(x − t u)]·|s|/(2t) along u = s/|s|, |·| the root mean square.

    With f(x) given, [f(x + t u) − f(x)]·|s|/t.
    """
    size = s.flatten(1).square().mean(1).sqrt()
    u = s / rows_like(size.clamp_min(torch.finfo(s.dtype).tiny), s)
    if centre is not None:
        return (values(f, x + t * u) - centre) * (size / t)
    forth, back = _evaluate(f, torch.stack([x + t * u, x - t * u]))
    return (forth - back) * (size / (2 * t))


def _evaluate(f: Function, points: Tensor) -> Tensor:
    """f at n points of every example: (n, B, *) → (n, B)."""
    if isinstance(f, Probed):
        return values(f, points.flatten(0, 1)).view(points.shape[:2])
    return torch.stack([values(f, point) for point in points])
