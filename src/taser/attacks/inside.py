"""Whether an attack kept to its threat, asked without trusting it."""

import torch
from torch import Tensor

from .threat import Threat


def inside(threat: Threat, moved: Tensor, x: Tensor) -> Tensor:
    """True where a point is in the ball around x and in the box, but for rounding. (B, *) → (B,).

    x ± ε in float32 is off by half a unit in the last place of x, which is not the attack's fault.
    """
    rounding = 2 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1) + 1e-5 * threat.epsilon
    close = threat.distance(moved, x) <= threat.epsilon + rounding
    boxed = (moved - threat.into_box(moved)).abs().flatten(1).amax(1) <= rounding
    return close & boxed  # NaN is in no ball
