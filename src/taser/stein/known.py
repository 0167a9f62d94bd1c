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
        self._model: ReferenceType[nn.Module] | None = None
        self._modes: list[bool] = []
        self._graph = False
        self._backend: Backend | None = None
        self._shares: bool | None = None

    def backend_for(self, model: Callable) -> Backend | None:
        """The backend, if this model was looked at in its modes, with a graph if there is one."""
        last = None if self._model is None else self._model()
        if last is None or last is not model or self._modes != _modes(last):
            return None
        enough = self._graph or not torch.is_grad_enabled()
        return self._backend if enough else None

    def keep(self, model: Callable, backend: Backend) -> None:
        """Remember a model that was looked at; only a weak reference to it."""
        if isinstance(model, nn.Module):
            self._model, self._modes = ref(model), _modes(model)
            self._graph, self._backend = torch.is_grad_enabled(), backend

    def centre(self, f: Probed, x: Tensor, shared: SharedPass, *, look: bool) -> Tensor | None:
        """f(x) from the pass of the loss, if that asked the same function."""
        if look:
            self._shares = None  # what held of another model, or in another mode, need not hold
        if self._shares is None and shared.outputs is not None:
            self._shares = shared.agrees(f, x)
        return shared.values(f, x) if self._shares else None

    def __getstate__(self) -> dict:
        return Known().__dict__  # a weak reference cannot be pickled


def _modes(model: nn.Module) -> list[bool]:
    """Of every module: with dropout in training mode the loss asks another function."""
    return [module.training for module in model.modules()]
