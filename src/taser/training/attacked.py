"""The model as attacks ask it: the same function, faster."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from taser.attacks import quiet
from taser.models import Folded, folded

TRIED = 8


@dataclass
class Attacked:
    """fold: a copy whose BatchNorms are folded; compile: and compiled."""

    fold: bool = True
    compile: bool = False
    _folded: Folded | None = field(default=None, init=False, repr=False)
    _compiled: Callable[[Tensor], Tensor] | None = field(default=None, init=False, repr=False)

    def of(self, module: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The module with its weights of now, in evaluation mode. x: (B, *), to try it on."""
        model = self._folded_copy(module, x) if self.fold else module
        if not self.compile:
            return model
        if self._compiled is None:
            self._compiled = torch.compile(model, dynamic=False)
        return self._compiled

    def _folded_copy(self, module: nn.Module, x: Tensor) -> nn.Module:
        if self._folded is None:
            copy = folded(module)
            with quiet(module), torch.no_grad():
                few = x[:TRIED]  # in copies: the module may begin in place
                own = module(few.clone())
                if copy is None or not _alike(_answers(copy, few), own):
                    self.fold = False
                    return module
            if bool((own == own[0]).all()):  # a last layer that is still zero hides what folds
                return module
            self._folded = copy
        return self._folded.refresh()


def _answers(copy: nn.Module, x: Tensor) -> Tensor | None:
    """Of the folded copy; None where it cannot be asked, as with layers that hooks compute."""
    try:
        return copy(x.clone())
    except Exception:  # in as many ways as people write layers
        return None


def _alike(one: Tensor | None, two: Tensor) -> bool:
    """Equal up to rounding, which is that of ten bits where a GPU's convolutions use TF32."""
    tolerance = 2e-3 if two.is_cuda and torch.backends.cudnn.allow_tf32 else 1e-4
    if one is None:
        return False
    return bool((one - two).abs().max() <= tolerance * two.abs().max().clamp_min(1.0))
