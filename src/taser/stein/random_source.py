"""Where random directions come from: a generator that was given, or one of the penalty's own."""

from typing import Any

import torch


class RandomSource:
    """A generator that is made on the device of its first use, unless one was given."""

    def __init__(self, generator: torch.Generator | None, seed: int) -> None:
        self.generator = generator
        self.seed = seed

    def on(self, device: torch.device) -> torch.Generator:
        """The generator, which has to live on this kind of device."""
        if self.generator is None:
            self.generator = torch.Generator(device).manual_seed(self.seed)
        if self.generator.device.type != device.type:
            raise ValueError(
                f"the penalty's generator is on {self.generator.device}, the inputs on {device}: "
                "give a generator for that device, or build the penalty anew"
            )
        return self.generator

    def state(self) -> tuple[str, torch.Tensor] | None:
        """What draws the same numbers again."""
        source = self.generator
        return None if source is None else (str(source.device), source.get_state())

    def restore(self, state: Any) -> None:
        """Go on from a :meth:`state`."""
        if state is not None:
            device, numbers = state
            self.generator = self.generator or torch.Generator(device)
            self.generator.set_state(numbers.cpu())
