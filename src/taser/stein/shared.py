"""A forward pass that the loss makes anyway, used again by the penalty."""

from collections.abc import Callable

import torch
from torch import Tensor

from taser.probes import Probed

from .guards import any_compiled, roots
from .statistics import Recorded

TRIED = 4
TOLERANCE = 1e-3


class SharedPass:
    """What the loss has computed already: BatchNorm's statistics, and the outputs at x.

        with taser.SharedPass(model) as shared:
            outputs = shared.outputs = model(x)
        loss = cross_entropy(outputs, y) + lam * penalty(model, x, y, s, shared=shared)

    The penalty then makes one pass less for the statistics and one less for f(x). Outputs of a pass
    that drew random numbers, as dropout does, are left aside, and those of layers that answer
    otherwise in evaluation mode: at the first call a few are compared with the model's own
    answers. So are outputs in half precision, in which differences drown; do not give them in
    disguise, cast to float32. Loss and penalty share a graph, so they have to share one
    `backward`. Of a compiled model the outputs alone are shared.

    The outputs have to be those of the very x that the penalty gets, row for row: at others the
    penalty would take the difference of two examples for a derivative. Weights that changed since
    are refused.
    """

    def __init__(self, model: Callable | None = None) -> None:
        unseen = model is None or any_compiled(model)
        self.statistics = None if unseen else Recorded(model)  # type: ignore[arg-type]
        self.outputs: Tensor | None = None
        modules = [] if model is None else roots(model)
        self._weights = [weight for module in modules for weight in module.parameters()]
        self._versions = self._changes()
        self._random: list[Tensor] = []
        self.drew = False

    def __repr__(self) -> str:
        outputs = None if self.outputs is None else tuple(self.outputs.shape)
        known = "with" if self.statistics is not None else "without"
        return f"SharedPass({known} BatchNorm's statistics, outputs={outputs})"

    def _changes(self) -> int:
        """How often the weights have been changed in place, as an optimiser does."""
        return sum(weight._version for weight in self._weights)

    def __enter__(self) -> "SharedPass":
        self._versions = self._changes()
        self._random = self._random_states()
        if self.statistics is not None:
            self.statistics.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.statistics is not None:
            self.statistics.__exit__(*error)
        after = self._random_states()
        self.drew = not all(map(torch.equal, self._random, after))

    def _random_states(self) -> list[Tensor]:
        """Of the generators that the model's layers draw from."""
        devices = {weight.device for weight in self._weights if weight.is_cuda}
        states = [torch.cuda.get_rng_state(device) for device in sorted(devices, key=str)]
        return [torch.get_rng_state(), *states]

    def check(self, x: Tensor) -> None:
        """Raise unless there is an output for each input."""
        if self.outputs is not None and len(self.outputs) != len(x):
            raise ValueError(
                f"the shared pass was made at other inputs: it has {len(self.outputs)} outputs for "
                f"{len(x)} inputs"
            )
        if self._changes() != self._versions:
            raise ValueError(
                "the shared pass was made at other weights: ask the model again after each step of "
                "the optimiser"
            )

    def rows(self, rows: Tensor) -> "SharedPass":
        """For a part of the batch; the statistics are those of the whole."""
        return self._with(None if self.outputs is None else self.outputs[rows])

    def elsewhere(self) -> "SharedPass":
        """For other points than x: their outputs are not known."""
        return self._with(None)

    def agrees(self, f: Probed, x: Tensor) -> bool | None:
        """Whether the outputs are those of the function that f asks, on a few examples.

        None if that cannot be seen: a network whose last layer is still zero says the same of all.
        """
        known, few = self.values(f, x), slice(TRIED)
        if known is None:
            return False
        labels = None if f.y is None else f.y[few]
        with torch.no_grad():  # of a copy: the model may begin with an operation in place
            outputs = f.model(x[few].clone())
            own = f.probe(outputs, labels)
            if bool((own - known[few]).abs().max() > TOLERANCE * (1 + own.abs().max())):
                return False
            return True if len(own) < 2 or bool((outputs != outputs[0]).any()) else None

    def values(self, f: Probed, x: Tensor) -> Tensor | None:
        """f(x), (B,), with its graph; None if it is not known to the precision of x."""
        if self.outputs is None or self.drew or self.outputs.dtype != x.dtype:
            return None  # asked before the probe, which takes outputs out of half precision
        return f.probe(self.outputs, f.y)

    def _with(self, outputs: Tensor | None) -> "SharedPass":
        shared = SharedPass()
        shared.statistics, shared.outputs, shared.drew = self.statistics, outputs, self.drew
        return shared
