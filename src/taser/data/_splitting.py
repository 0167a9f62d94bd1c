"""Held-out examples, class numbers and subsets, the same on every machine."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def hold_out(
    n: int, fraction: float, *, seed: int | tuple[int, ...], labels: np.ndarray | None = None
) -> np.ndarray:
    """A mask (n,) of the examples that are held out, about `fraction` of them.

    With class labels (n,) the fraction is taken of each class apart, so that every class keeps its
    share. Whether an example is held out depends on n, its place, the seed and the labels alone.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the fraction to hold out should lie strictly in (0, 1); got {fraction}")
    # Raw words of a bit generator are the one stream that numpy promises never to change.
    keys = np.random.PCG64(seed).random_raw(n)
    order = np.argsort(keys, kind="stable")
    groups = np.zeros(n, dtype=np.int64) if labels is None else labels
    held = np.zeros(n, dtype=bool)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        held[members[: round(fraction * len(members))]] = True
    if not held.any() or held.all():
        raise ValueError(
            f"{n} examples{' in these classes' if labels is not None else ''} are too few to hold "
            f"out {fraction:g} of them: one part would be empty"
        )
    return held


def encode_labels(labels: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Each array of labels as class numbers, and the names of the classes in sorted order.

    The first array is that of the training part; a label that it lacks is an error.

    >>> import numpy as np
    >>> encode_labels([np.array(["dog", "cat"])])
    ([array([1, 0])], ('cat', 'dog'))
    """
    classes = np.unique(labels[0])
    for part in labels[1:]:
        unknown = np.setdiff1d(part, classes)
        if unknown.size:
            raise ValueError(
                f"the training part has no example of {_listed(unknown)}, which another part has"
            )
    if len(classes) < 2:
        raise ValueError(f"wanted at least two classes; every label is {_listed(classes)}")
    return [np.searchsorted(classes, part) for part in labels], tuple(map(str, classes))


def _listed(labels: np.ndarray) -> str:
    shown = ", ".join(repr(label) for label in labels[:5].tolist())
    return f"{shown} and {len(labels) - 5} more" if len(labels) > 5 else shown


def subset(total: int, n: int, seed: int = 0) -> Tensor:
    """`n` of `total` examples, drawn once for all models: (min(n, total),), in rising order.

    Smaller subsets lie inside larger ones.

    >>> subset(10, 4)
    tensor([2, 4, 6, 7])
    >>> subset(3, 10)
    tensor([0, 1, 2])
    """
    if n < 1:
        raise ValueError(f"n should be at least 1; got {n}")
    drawn = np.random.default_rng(seed).permutation(total)[:n]
    return torch.from_numpy(np.sort(drawn))
