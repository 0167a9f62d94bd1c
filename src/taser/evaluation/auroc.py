"""How well a number tells two sets apart."""

import torch
from torch import Tensor

from .resampling import draws, percentiles
from .statistics import Interval


def auroc(inside: Tensor, outside: Tensor, *, resamples: int = 1000, seed: int = 0) -> Interval:
    """P(outside > inside) + ½ P(outside = inside), the Mann–Whitney statistic, exact with ties.

    inside: (n,), outside: (m,). ½ is chance, 1 is perfect, 0 is perfect with the sign turned. The
    95 % bootstrap interval resamples both sets apart, so they should hold different examples.

    >>> import torch
    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).value  # three wins and a tie of 4
    0.875
    """
    for name, sample in (("inside", inside), ("outside", outside)):
        if sample.ndim != 1 or len(sample) == 0 or not bool(torch.isfinite(sample).all()):
            raise ValueError(
                f"{name} should hold finite numbers, shape (n,); got {tuple(sample.shape)}, "
                f"{int((~torch.isfinite(sample)).sum())} of them not finite"
            )
    inside, outside = (sample.detach().cpu().double() for sample in (inside, outside))
    ordered = inside.sort().values
    # Of the ordered inside, `below` lie under each outside number and `through` at most at it.
    below = torch.searchsorted(ordered, outside)
    through = torch.searchsorted(ordered, outside, right=True)

    def area(drawn: Tensor, against: Tensor) -> Tensor:
        """For how often each example was drawn, (R, n) and (R, m): (R,)."""
        counted = torch.nn.functional.pad(drawn.cumsum(1), (1, 0))
        wins = (counted[:, below] + counted[:, through]) / 2
        return (wins * against).sum(1) / (drawn.sum(1) * against.sum(1))

    n, m = len(ordered), len(outside)
    whole = area(*(torch.ones(1, size, dtype=torch.float64) for size in (n, m)))
    generator = torch.Generator().manual_seed(seed)
    areas = area(*(draws(resamples, size, generator) for size in (n, m)))
    return Interval(float(whole), *percentiles(areas))
