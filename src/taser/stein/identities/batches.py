"""Stein residuals of many samples, a batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from taser.probes import Probed
from taser.stein.checks import check_inputs
from taser.stein.guards import Backend
from taser.stein.residual import stein_residual
from taser.stein.terms import Function, Operator


@dataclass(frozen=True)
class Residuals:
    """How residuals are estimated: the options of :func:`taser.stein_residual`, and `batch` rows
    at a time. Values only, without a graph.
    """

    backend: Backend
    probes: int
    step: float | None
    generator: torch.Generator | None
    batch: int

    @torch.no_grad()
    def __call__(
        self, f: Function, x: Tensor, s: Tensor, operator: Operator = "langevin"
    ) -> Tensor:
        """r = Δf + s·∇f at x, (n, *), with scores s: (n,)."""
        check_inputs(x, s)
        parts = [
            stein_residual(
                part, rows, scores, operator=operator, backend=self.backend, probes=self.probes,
                step=self.step, generator=self.generator,
            )
            for part, (rows, scores) in batches(f, self.batch, x, s)
        ]  # fmt: skip
        return torch.cat(parts)

    def pair(self, f: Function, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Two estimates of r, (n,) each, whose product has the mean r².

        The square of one estimate is too large by its variance over probes; the product of two
        with independent probes is not. The exact residual has no probes and is its own pair.
        """
        r = self(f, x, s)
        return r, (r if self.backend == "exact" else self(f, x, s))


def row_slices(n: int, batch: int) -> Iterator[slice]:
    """The rows 0 … n − 1, `batch` at a time."""
    if n < 2:
        raise ValueError(f"an estimate takes at least two samples; x has {n}")
    if batch < 1:
        raise ValueError(f"batch should be at least 1; got {batch}")
    return (slice(start, start + batch) for start in range(0, n, batch))


def batches(f: Function, batch: int, *tensors: Tensor) -> Iterator[tuple[Function, list[Tensor]]]:
    """f and `batch` rows of each tensor at a time; the labels of a Probed go with their rows."""
    n = len(tensors[0])
    y = f.y if isinstance(f, Probed) else None
    if y is not None and len(y) != n:
        raise ValueError(f"f should have one label for each of the {n} rows of x; got {len(y)}")
    for rows in row_slices(n, batch):
        part = replace(f, y=y[rows]) if isinstance(f, Probed) and y is not None else f
        yield part, [tensor[rows] for tensor in tensors]
