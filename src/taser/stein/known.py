"""What was found out about a model at its first use: looking costs time, once for each."""

from collections.abc import Callable
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from taser.probes import Probed

from .guards import Backend
from .shared import SharedPass


class Known:
    """The backend that serves the last model, and whether passes of the loss can be shared."""

    def __init__(self) -> None:
        self._model: ReferenceType | None = None
        self._graph = False
        self._backend: Backend | None = None
        self._shares: bool | None = None

    def backend_for(self, model: Callable) -> Backend | None:
        """The backend, if this model was looked at, with a graph if there is one now."""
        enough = self._graph or not torch.is_grad_enabled()
        same = self._model is not None and self._model() is model
        return self._backend if same and enough else None

    def keep(self, model: Callable, backend: Backend) -> None:
        """Remember a model that was looked at; only a weak reference to it."""
        if isinstance(model, nn.Module):
            self._model, self._graph = ref(model), torch.is_grad_enabled()
            self._backend = backend

    def centre(self, f: Probed, x: Tensor, shared: SharedPass, *, look: bool) -> Tensor | None:
        """f(x) from the pass of the loss, if that asked the same function."""
        if shared.outputs is not None and (look or self._shares is None):
            self._shares = shared.agrees(f, x)
        return shared.values(f) if self._shares else None

    def __getstate__(self) -> dict:
        return Known().__dict__  # a weak reference cannot be pickled
