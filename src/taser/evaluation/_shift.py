"""Accuracy under common corruptions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from taser._progress import Progress
from taser.attacks import Model

from ._corruptions import CORRUPTIONS, SEVERITIES, Corruption
from ._record import device_of, predictions
from ._statistics import Interval, accuracy_interval


@dataclass(frozen=True, eq=False)
class Shift:
    """Which of n examples a model gets right, clean and corrupted.

    clean: (n,) bool; correct: for each corruption (5, n) bool, one row a severity; skipped: for
    each corruption that these inputs do not allow, why.
    """

    clean: Tensor
    correct: Mapping[str, Tensor]
    skipped: Mapping[str, str]
    seed: int

    def accuracy(self, corruption: str | None = None, severity: int | None = None) -> Interval:
        """Mean over the corruptions and severities, or of one of them; 95 % interval.

        The bootstrap draws examples with all their corruptions, which are not independent.
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
        """Everything, for JSON; `correct` as 0 and 1."""
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
    """Accuracy on x, (n, C, H, W) in [0, 1], with labels y, (n,), under every corruption."""
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)

    def right(x: Tensor) -> Tensor:
        return (predictions(model, x, batch_size) == y).cpu()

    skipped = {c.name: why for c in corruptions if (why := c.unsupported(x)) is not None}
    possible = [corruption for corruption in corruptions if corruption.name not in skipped]
    if not possible:
        raise ValueError(
            f"none of the corruptions can be done: {'; '.join(dict.fromkeys(skipped.values()))}"
        )
    correct = {}
    for done, corruption in enumerate(possible):
        if progress:
            progress(done, len(possible), corruption.name)
        rows = [right(corruption(x, severity, seed=seed)) for severity in SEVERITIES]
        correct[corruption.name] = torch.stack(rows)
    return Shift(right(x), correct, skipped, seed)


def mixed_corruptions(
    x: Tensor, severity: int, *, corruptions: Sequence[Corruption] = CORRUPTIONS, seed: int = 0
) -> Tensor:
    """x with one corruption an example, all in turn: (n, C, H, W)."""
    possible = [corruption for corruption in corruptions if corruption.unsupported(x) is None]
    out = x.clone()
    for first, corruption in enumerate(possible[: len(x)]):
        rows = slice(first, None, len(possible))
        out[rows] = corruption(x[rows], severity, seed=seed)
    return out
