"""A multilayer perceptron."""

from itertools import pairwise
from math import prod

from torch import Tensor, nn

from .activation import Activation, factory
from .normalised import Normalised


class MLP(Normalised):
    """`depth` hidden layers of `width` units: (B, *shape) → (B, outputs).

    shape: (d,) for vectors, or that of images, which are flattened. outputs: the classes, or 1 for
    regression.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int = 10,
        width: int = 256,
        depth: int = 2,
        activation: Activation = "relu",
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ) -> None:
        super().__init__(mean, std, dims=len(shape) - 1)
        if depth < 1:
            raise ValueError(f"depth should be at least 1 hidden layer; got {depth}")
        make = factory(activation)
        hidden = [prod(shape), *[width] * depth]
        self.hidden = nn.Sequential(
            *(nn.Sequential(nn.Linear(before, after), make()) for before, after in pairwise(hidden))
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.normalise(x).flatten(1)))
