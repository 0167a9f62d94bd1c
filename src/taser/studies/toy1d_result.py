"""What the toy regression measured."""

import json
import math
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from .toy1d_config import Config, Method

SPACING = 0.1  # of the points at which every forecast is kept


@dataclass(frozen=True)
class Fit:
    """One trained network: its mean squared errors, and its forecast at :attr:`Result.x`.

    id_mse: on fresh draws of N(0, 1); ood_mse: on each of the config's wide grids.
    """

    method: Method
    weight: float
    seed: int
    id_mse: float
    ood_mse: tuple[float, ...]
    forecast: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """Everything measured; `seconds` is the wall clock and does not count in comparisons."""

    config: Config
    fits: tuple[Fit, ...]
    torch_version: str
    seconds: float = field(compare=False)

    @property
    def x(self) -> list[float]:
        """The points of every forecast."""
        return points(self.config).tolist()

    def of(self, method: Method, weight: float) -> list[Fit]:
        """The fits of one row, in the order of the seeds."""
        return [fit for fit in self.fits if (fit.method, fit.weight) == (method, weight)]

    def ood(self, method: Method, weight: float, half_width: float) -> list[float]:
        """A row's errors on the grid ±half_width, in the order of the seeds."""
        index = self.config.half_widths.index(half_width)
        return [fit.ood_mse[index] for fit in self.of(method, weight)]

    def to_json(self) -> str:
        """Every number, for a file."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """The result that :meth:`to_json` wrote."""
        content = json.loads(text)
        fits = tuple(Fit(**_tuples(fit)) for fit in content.pop("fits"))
        return cls(config=Config(**_tuples(content.pop("config"))), fits=fits, **content)


def points(config: Config) -> Tensor:
    """−W … W for the widest grid, in float64."""
    steps = math.ceil(max(config.half_widths) / SPACING - 1e-9)
    return torch.arange(-steps, steps + 1, dtype=torch.float64) * SPACING


def _tuples(content: dict) -> dict:
    """JSON's lists, as the tuples they were."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
