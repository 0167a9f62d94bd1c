"""The numbers of the published code, read once; tests/objectives/reference/README.md explains."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "reference"


@dataclass(frozen=True)
class Published:
    """What one method's code gave for one network. scalars: of the method; own: of the network."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Any]
    own: dict[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def group(self, name: str) -> dict[str, Tensor]:
        """All tensors called "name.…", by what comes after."""
        start = f"{name}."
        return {
            key.removeprefix(start): tensor
            for key, tensor in self.tensors.items()
            if key.startswith(start)
        }

    def model(self) -> nn.Sequential:
        """The network, in training mode, with the weights from before the step."""
        model = mlp() if self["x"].ndim == 2 else conv()
        model.double().load_state_dict(self.group("before"))
        return model.train()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8), nn.SiLU(), nn.Linear(8, 4))


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(3), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip


@lru_cache
def published(method: str, network: str) -> Published:
    """published("trades", "conv"): what TRADES's code gave for the network `conv`."""
    scalars = json.loads((FOLDER / "reference.json").read_text())[method]
    start = f"{network}."
    tensors = {
        key.removeprefix(start): tensor
        for key, tensor in load_file(FOLDER / f"{method}.safetensors").items()
        if key.startswith(start)
    }
    return Published(tensors, scalars, scalars[network])
