"""What a model says, asked without changing it."""

import torch
from torch import Tensor

from taser.attacks import Model, quiet


def answers(model: Model, x: Tensor, batch_size: int = 100) -> Tensor:
    """The class of the largest logit, (B, *) → (B,); −1 for NaN, which is no answer."""
    with quiet(model), torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(batch_size)])
    return logits.argmax(1).masked_fill(logits.isnan().any(1), -1)
