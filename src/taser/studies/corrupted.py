"""How many corruptions of its test examples a trained network stands."""

from typing import Any

import torch
from torch import Tensor, nn

from taser.data import Split
from taser.evaluation import subset
from taser.evaluation.corruptions import CORRUPTIONS
from taser.evaluation.shift import shift
from taser.progress import Progress


def stood(
    model: nn.Module, test: Split, n: int, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Right answers to n test pictures under every corruption and severity; as JSON.

    of: how many times each was asked; right: how often rightly, (n,); kinds: the share of right
    answers to each kind of corruption. None for what is no picture.
    """
    if not test.is_images:
        return None
    rows = subset(len(test), n)
    found = shift(model, test.rows(rows), test.y[rows], progress=progress)
    kinds: dict[str, list[Tensor]] = {}
    for corruption in CORRUPTIONS:
        if corruption.name in found.correct:
            kinds.setdefault(corruption.kind, []).append(found.correct[corruption.name])
    every = torch.cat(list(found.correct.values()))  # (corruptions · severities, n)
    return {
        "of": len(every), "right": every.sum(0).tolist(),
        "kinds": {kind: float(torch.cat(own).float().mean()) for kind, own in kinds.items()},
    }  # fmt: skip


def verdicts(found: dict[str, Any]) -> Tensor:
    """(k, n) bool with as many right answers to each example as :func:`stood` counted."""
    return torch.arange(found["of"])[:, None] < torch.tensor(found["right"])
