"""A regulariser in a loop of one's own that runs on Hugging Face Accelerate."""

from typing import TypeVar

from accelerate import Accelerator
from torch import nn

from taser.stein import Regulariser

R = TypeVar("R", bound=Regulariser)


def prepare(regulariser: R, accelerator: Accelerator, model: nn.Module) -> R:
    """The regulariser on the accelerator's device, attached to the prepared model.

    Its weights are held fixed, and `accelerator.save_state` saves its state.

        model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
        robust = taser.integrations.accelerate.prepare(robust, accelerator, model)
    """
    regulariser.to(accelerator.device).requires_grad_(False)
    accelerator.register_for_checkpointing(regulariser)
    return regulariser.attach(model)
