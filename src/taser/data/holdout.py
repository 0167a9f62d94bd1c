"""Which examples are held out: chosen once by a seed, the same on every machine."""

import numpy as np


def hold_out(
    n: int, fraction: float, *, seed: int | tuple[int, ...], labels: np.ndarray | None = None
) -> np.ndarray:
    """A mask (n,) of the examples that are held out, about `fraction` of them.

    With class labels (n,) the fraction is taken of each class apart, so that every class keeps its
    share. An example's fate depends on n, its place, the seed and the labels alone.
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
