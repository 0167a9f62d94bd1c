"""A callback for PyTorch Lightning that adds the penalty to the loss of `training_step`."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import lightning
from torch import Tensor, nn

from taser.regularisers import TargetLoss
from taser.stein import Regulariser


class TaserCallback(lightning.Callback):
    """Add weight · R of each training batch to the loss; the LightningModule stays as it is.

        Trainer(callbacks=[TaserCallback(robust, weight=0.3, network="model")])

    Lightning has no hook between the loss and its backward pass that could change the loss, so the
    callback wraps `training_step` while the Trainer fits. It moves the regulariser to the module's
    device, logs "penalty", and keeps the regulariser's state in Lightning's checkpoints.

    weight
        λ, or a :class:`taser.regularisers.TargetLoss`, which gets the loss of each step.
    network
        Name of the LightningModule's attribute that maps x to the outputs, such as "model" or
        "backbone.head"; by default the LightningModule itself, by its `forward`.
    batch
        batch ↦ (x, y); by default its first two entries.
    """

    def __init__(
        self, regulariser: Regulariser, weight: float | TargetLoss = 0.3, *,
        network: str | None = None,
        batch: Callable[[Any], tuple[Tensor, Tensor | None]] = lambda batch: (batch[0], batch[1]),
    ) -> None:  # fmt: skip
        self.regulariser, self.weight = regulariser, weight
        self.network, self.batch = network, batch

    def on_fit_start(self, _: Any, pl_module: lightning.LightningModule) -> None:
        """Wrap `training_step`."""
        network = self._network(pl_module)
        self.regulariser.to(pl_module.device).requires_grad_(False)
        self.regulariser.attach(network)
        plain = pl_module.training_step
        if not pl_module.automatic_optimization:
            raise ValueError(
                "TaserCallback needs automatic optimisation; with manual optimisation add "
                "weight * regulariser(network, x, y) to the loss in training_step"
            )

        @wraps(plain)
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(batch, *args, **kwargs)
            if result is None:  # Lightning skips this batch
                return None
            loss: Any = result["loss"] if isinstance(result, dict) else result
            weight = self.weight(loss) if isinstance(self.weight, TargetLoss) else self.weight
            penalty = self.regulariser(network, *self.batch(batch))
            pl_module.log("penalty", penalty.detach())
            total = loss + weight * penalty
            return {**result, "loss": total} if isinstance(result, dict) else total

        pl_module.training_step = training_step  # type: ignore[method-assign]

    def _network(self, pl_module: lightning.LightningModule) -> nn.Module:
        if self.network is not None:
            try:
                return pl_module.get_submodule(self.network)
            except AttributeError as error:
                raise ValueError(f"network={self.network!r}: {error}") from None
        if type(pl_module).forward is lightning.LightningModule.forward:
            names = ", ".join(name for name, _ in pl_module.named_children())
            raise ValueError(
                f"{type(pl_module).__name__} has no forward: name the attribute that maps x to the "
                f"outputs, TaserCallback(…, network=…); its modules are {names}"
            )
        return pl_module

    def on_fit_end(self, _: Any, pl_module: lightning.LightningModule) -> None:
        """Restore the class's own `training_step`."""
        self.regulariser.release()
        vars(pl_module).pop("training_step", None)

    def on_exception(self, trainer: Any, pl_module: Any, _: BaseException) -> None:
        """As at the end."""
        self.on_fit_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The regulariser's state without the score's weights, and the λ of a TargetLoss."""
        weight = self.weight.weight if isinstance(self.weight, TargetLoss) else self.weight
        state = self.regulariser.get_extra_state()
        return {"calls": state, "tensors": self.regulariser.state(), "weight": weight}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.regulariser.set_extra_state(state_dict["calls"])
        self.regulariser.load_state(state_dict["tensors"])
        if isinstance(self.weight, TargetLoss):
            self.weight.weight = state_dict["weight"]
