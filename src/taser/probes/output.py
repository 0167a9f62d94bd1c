"""A regression output."""

from torch import Tensor

from .precision import full_precision


class Output:
    """The model's own number: outputs of shape (B,) or (B, m), of which column `index` is taken."""

    def __init__(self, index: int = 0) -> None:
        if index < 0:
            raise ValueError(f"index should be an output number, 0 or more; got {index}")
        self.index = index

    def __call__(self, outputs: Tensor, y: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """outputs: (B,) or (B, m); returns (B,)."""
        columns = outputs[:, None] if outputs.ndim == 1 else outputs
        if columns.ndim != 2 or self.index >= columns.shape[1]:
            raise ValueError(
                f"{self!r} wants outputs of shape (B, m) with m > {self.index}, or (B,) for "
                f"index 0; got {tuple(outputs.shape)}"
            )
        return full_precision(columns[:, self.index])

    def __repr__(self) -> str:
        return f"Output({self.index})"
