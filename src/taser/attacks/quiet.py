"""A model that is only asked, never changed: for attacks, evaluation and their gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taser.stein.guards import frozen, roots


@contextmanager
def quiet(model: Callable) -> Iterator[None]:
    """Evaluation mode, and no gradients for parameters; all put back as it was.

    So BatchNorm's running statistics stay, `.grad` of parameters stays, and the backward pass
    computes what the input needs and nothing else.
    """
    parameters = [p for root in roots(model) for p in root.parameters() if p.requires_grad]
    with frozen(model):
        try:
            for parameter in parameters:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)
