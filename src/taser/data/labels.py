"""Class numbers 0 … K − 1 from labels of any kind."""

from collections.abc import Sequence

import numpy as np


def numbered(labels: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Each array of labels as class numbers, and the names of the classes in sorted order.

    The first array is that of the training part: a label that it lacks is an error, since no model
    could learn it.

    >>> import numpy as np
    >>> numbered([np.array(["dog", "cat"])])
    ([array([1, 0])], ('cat', 'dog'))
    """
    classes = np.unique(labels[0])
    for part in labels[1:]:
        strange = np.setdiff1d(part, classes)
        if strange.size:
            raise ValueError(
                f"the training part has no example of {_listed(strange)}, which another part has"
            )
    if len(classes) < 2:
        raise ValueError(f"wanted at least two classes; every label is {_listed(classes)}")
    return [np.searchsorted(classes, part) for part in labels], tuple(map(str, classes))


def _listed(labels: np.ndarray) -> str:
    shown = ", ".join(repr(label) for label in labels[:5].tolist())
    return f"{shown} and {len(labels) - 5} more" if len(labels) > 5 else shown
