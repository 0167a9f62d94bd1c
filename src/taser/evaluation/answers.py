"""What a model says, asked without changing it."""

from itertools import chain

import torch
from torch import Tensor

from taser.attacks import Model, quiet
from taser.stein.guards import roots


def answers(model: Model, x: Tensor, batch_size: int = 100) -> Tensor:
    """The class of the largest logit, (B, *) → (B,); −1 for NaN, which is no answer."""
    device = device_of(model, x)
    with quiet(model), torch.no_grad():
        parts = [model(part.to(device, copy=True)) for part in x.split(batch_size)]
    logits = torch.cat(parts).to(x.device)
    return logits.argmax(1).masked_fill(logits.isnan().any(1), -1)


def device_of(model: Model, x: Tensor) -> torch.device:
    """Where the weights are, so that x can go there; where x is, if there are none."""
    tensors = (tensor for r in roots(model) for tensor in chain(r.parameters(), r.buffers()))
    return next((tensor.device for tensor in tensors), x.device)
