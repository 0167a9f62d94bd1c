"""A Trainer of Hugging Face transformers that adds the penalty to the model's loss."""

from typing import Any

import transformers
from torch import Tensor, nn

from taser.models import Wrapped
from taser.regularisers import TargetLoss
from taser.stein import Regulariser


class TaserTrainer(transformers.Trainer):
    """`transformers.Trainer` with the loss + weight · R of each training batch.

        TaserTrainer(model, args, train_dataset=…, regulariser=robust, weight=0.3)

    For classifiers whose input is one float tensor, such as a ViT; all other arguments are the
    Trainer's. The regulariser makes a forward pass of its own at the same inputs, in float32, and
    its random state is not part of the Trainer's checkpoints.

    weight
        λ, or a :class:`taser.regularisers.TargetLoss`, which gets the loss of each step.
    inputs, labels
        Names of the tensors in a batch; inputs in the coordinates of the score and the threat, or
        give `normalisation=` to the regulariser if an image processor normalises them.
    """

    def __init__(
        self, *args: Any, regulariser: Regulariser, weight: float | TargetLoss = 0.3,
        inputs: str = "pixel_values", labels: str = "labels", **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.regulariser = regulariser.to(self.args.device).requires_grad_(False)
        self.weight, self.inputs, self.labels = weight, inputs, labels
        self._network: tuple[nn.Module, Wrapped] | None = None

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # fmt: skip
        """The Trainer's loss, and in training mode the penalty of the batch."""
        if self.inputs not in inputs or self.labels not in inputs:
            raise ValueError(
                f"a batch should have {self.inputs!r} and {self.labels!r}; it has "
                f"{', '.join(inputs)}: name them with TaserTrainer(…, inputs=…, labels=…)"
            )
        x, y = inputs[self.inputs], inputs[self.labels]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            # A loss that is divided by num_items_in_batch is a share of the accumulated batch's.
            divided = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            shared = divided or self.compute_loss_func is not None
            parts = self.current_gradient_accumulation_steps if shared else 1
            weight = self.weight
            if isinstance(weight, TargetLoss):
                weight = weight(parts * loss)
            loss = loss + weight / parts * self.regulariser(self._logits(model), x, y)
        return (loss, outputs) if return_outputs else loss

    def _logits(self, model: nn.Module) -> Wrapped:
        """The model as a module from x to its logits."""
        inner = self.accelerator.unwrap_model(model)
        if self._network is None or self._network[0] is not inner:
            name = self.inputs
            self._network = inner, Wrapped(lambda x: inner(**{name: x}).logits, inner)
        return self._network[1].train(model.training)
