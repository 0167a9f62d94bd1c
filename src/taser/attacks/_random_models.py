"""Randomised models: their average over draws, for attacks; their majority, for verdicts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser.stein._model_state import check_module

from ._attack import Model

EOT, VOTES = 20, 100  # draws for an attack (as AutoAttack's random version), for a verdict


class Averaged(nn.Module):
    """The mean logits of `draws` calls of a randomised model, for any attack on it.

    Expectation over transformations (Athalye et al., 2018): `PGD()(Averaged(model, 20), x, y)`.
    """

    def __init__(self, model: Model, draws: int = EOT) -> None:
        super().__init__()
        if draws < 1:
            raise ValueError(f"draws should be at least 1; got {draws}")
        self.model, self.draws = check_module(model), draws

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, C)."""
        return torch.stack([self.model(x.clone()) for _ in range(self.draws)]).mean(0)


class Votes(Averaged):
    """The share of `draws` calls that predict each class: (B, *) → (B, C)."""

    def __init__(self, model: Model, draws: int = VOTES) -> None:
        super().__init__(model, draws)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Shares that sum to one; less by those of draws that are NaN."""
        outputs = (self.model(x.clone()) for _ in range(self.draws))
        votes = [F.one_hot(z.argmax(1), z.shape[1]) * ~z.isnan().any(1)[:, None] for z in outputs]
        return torch.stack(votes).float().mean(0)
