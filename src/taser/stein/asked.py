"""The model as a penalty asks it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from taser.probes.precision import full_precision

from .guards import frozen
from .shared import SharedPass
from .statistics import Statistics, batch_statistics


@contextmanager
def asked(
    model: Callable, x: Tensor, shared: SharedPass | None = None, which: Statistics = "auto"
) -> Iterator[None]:
    """Full precision, BatchNorm by the fixed statistics of x, (B, *), and evaluation mode.

    shared: a pass of the loss that may have recorded these statistics.
    """
    recorded = None if shared is None else shared.statistics
    with (
        torch.autocast(x.device.type, enabled=False),
        batch_statistics(model, full_precision(x), which, recorded),
        frozen(model),
    ):
        yield
