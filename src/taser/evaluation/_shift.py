"""Accuracy under corruptions that nobody chose to do harm."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from taser._progress import Progress
from taser.attacks import Model

from ._corruptions import CORRUPTIONS, SEVERITIES, Corruption
from ._record import answers, device_of
from ._statistics import Interval, accuracy_interval


@dataclass(frozen=True, eq=False)
class Shift:
    """Which of n examples a model gets right, clean and corrupted.

    clean: (n,); correct: for each corruption (5, n), one row a severity; skipped: for each
    corruption that could not be done, why.
    """

    clean: Tensor
    correct: Mapping[str, Tensor]
    skipped: Mapping[str, str]
    seed: int

    def accuracy(self, corruption: str | None = None, severity: int | None = None) -> Interval:
        """Of one corruption or the mean of all, at one severity or the mean of all; with 95 %.

        The corruptions of one example are not independent, so examples are drawn, with all theirs.
        """
        if severity is not None and severity not in SEVERITIES:
            raise ValueError(f"severity should be one of {list(SEVERITIES)}; got {severity}")
        chosen = [self.correct[corruption]] if corruption else list(self.correct.values())
        rows = torch.stack(chosen)[:, slice(None) if severity is None else [severity - 1]]
        return accuracy_interval(rows.flatten(0, 1), seed=self.seed)

    @property
    def clean_accuracy(self) -> Interval:
        """Without corruption."""
        return accuracy_interval(self.clean, seed=self.seed)

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON, with the examples that are got right as 0 and 1."""
        return {
            "n": len(self.clean),
            "seed": self.seed,
            "clean": asdict(self.clean_accuracy),
            "mean": asdict(self.accuracy()),
            "corruptions": {
                name: {
                    "mean": asdict(self.accuracy(name)),
                    "severities": [asdict(self.accuracy(name, s)) for s in SEVERITIES],
                }
                for name in self.correct
            },
            "skipped": dict(self.skipped),
            "correct": {"clean": self.clean.int().tolist()}
            | {name: rows.int().tolist() for name, rows in self.correct.items()},
        }


def shift(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
    seed: int = 0,
    batch_size: int = 250,
    progress: Progress | None = None,
) -> Shift:
    """Ask `model` about x, (n, C, H, W) in [0, 1], with labels y, (n,), at every severity."""
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)
    reasons = {corruption.name: corruption.unfit(x) for corruption in corruptions}
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    fit = [corruption for corruption in corruptions if corruption.name not in skipped]
    if not fit:
        raise ValueError(
            f"none of the corruptions can be done: {'; '.join(dict.fromkeys(skipped.values()))}"
        )
    correct = {}
    for done, corruption in enumerate(fit):
        if progress:
            progress(done, len(fit), corruption.name)
        severities = [
            _right(model, corruption(x, severity, seed=seed), y, batch_size)
            for severity in SEVERITIES
        ]
        correct[corruption.name] = torch.stack(severities)
    return Shift(_right(model, x, y, batch_size), correct, skipped, seed)


def mixed(
    x: Tensor, severity: int, *, corruptions: Sequence[Corruption] = CORRUPTIONS, seed: int = 0
) -> Tensor:
    """x with every example corrupted in one way, each way for about as many: (n, C, H, W)."""
    fit = [corruption for corruption in corruptions if corruption.unfit(x) is None]
    out = x.clone()
    for turn, corruption in enumerate(fit):
        if len(x[turn :: len(fit)]):
            out[turn :: len(fit)] = corruption(x[turn :: len(fit)], severity, seed=seed)
    return out


def _right(model: Model, x: Tensor, y: Tensor, batch_size: int) -> Tensor:
    return (answers(model, x, batch_size) == y).cpu()
