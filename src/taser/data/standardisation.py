"""Features of mean zero and standard deviation one, and the way back."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Standardisation:
    """u = (x − mean) / std over the last dimension; fitted on the training part only.

    mean, std: one number for each feature. A plain record, so that it can be saved with the model
    that was trained on u: a new x has to go through the same numbers.

    >>> import torch
    >>> scale = Standardisation.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> scale.apply(torch.tensor([[2.0, 6.0]]))
    tensor([[0., 1.]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                "a standardisation needs one mean and one std for each feature; "
                f"got {len(self.mean)} means and {len(self.std)} stds"
            )
        if not all(0 < std < float("inf") for std in self.std):
            raise ValueError(f"every std should be positive and finite; got {list(self.std)}")
        if not all(abs(mean) < float("inf") for mean in self.mean):
            raise ValueError(f"every mean should be finite; got {list(self.mean)}")

    @classmethod
    def fit(cls, x: Tensor) -> "Standardisation":
        """Mean and standard deviation of each column of x, (N, d).

        A column that never changes keeps std 1: it becomes zero instead of not a number.
        """
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(f"x should be vectors, (N, d); got {tuple(x.shape)}")
        std, mean = torch.std_mean(x.double(), 0, correction=0)
        constant = (x == x[0]).all(0)  # rounding in the mean can leave a std that is not quite 0
        std = torch.where(constant | (std == 0), torch.ones_like(std), std)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def apply(self, x: Tensor) -> Tensor:
        """x → u; any shape whose last dimension is the features."""
        mean, std = self._tensors(x)
        return ((x.double() - mean) / std).to(x.dtype)

    def invert(self, u: Tensor) -> Tensor:
        """u → x."""
        mean, std = self._tensors(u)
        return (u.double() * std + mean).to(u.dtype)

    def _tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.ndim == 0 or x.shape[-1] != len(self.mean):
            raise ValueError(
                f"this standardisation is of {len(self.mean)} features, so the last dimension of "
                f"x should be {len(self.mean)}; got {tuple(x.shape)}"
            )
        mean = torch.tensor(self.mean, dtype=torch.float64, device=x.device)
        return mean, torch.tensor(self.std, dtype=torch.float64, device=x.device)
