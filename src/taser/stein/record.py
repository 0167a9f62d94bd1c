"""What a penalty computed last, for the log, and what it was calibrated to."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .terms import Terms


@dataclass(frozen=True)
class Record:
    """The last penalty that was really computed (not skipped by `every`).

    Each entry but `backend` is a detached scalar tensor, or None where it was not computed;
    reading it as a number is what makes an accelerator wait, so nothing here does.

    value: the penalty R; mean, std: of the residuals; laplacian_std, drift_std: of the terms Δf
    and s·∇f apart (with the difference backend only if the penalty was built with `terms=True`).
    """

    backend: str
    value: Tensor
    mean: Tensor
    std: Tensor
    laplacian_std: Tensor | None
    drift_std: Tensor | None

    @classmethod
    @torch.no_grad()
    def of(cls, terms: Terms, value: Tensor, backend: str) -> "Record":
        """Of the residuals of a batch and their penalty."""

        def spread(term: Tensor | None) -> Tensor | None:
            return None if term is None else term.std(correction=0)

        r = terms.residual
        return cls(
            backend, value.detach(), r.mean(), r.std(correction=0), spread(terms.laplacian),
            spread(terms.drift),
        )  # fmt: skip

    def share(self, task_loss: Tensor | float, weight: float) -> float:
        """λR as a share of the whole loss, λR / (task + λR)."""
        part = weight * self.value.item()
        return part / (torch.as_tensor(task_loss).item() + part)

    def numbers(self) -> dict[str, float]:
        """Every entry that is known, as a plain number."""
        entries = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: float(e) for name, e in entries.items() if isinstance(e, torch.Tensor)}


@dataclass(frozen=True)
class Calibration:
    """The mean residual over n examples, and its standard error."""

    mean: float
    stderr: float
    n: int
