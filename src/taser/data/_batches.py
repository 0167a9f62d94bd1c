"""Batches of examples in an order that a resumed run repeats, and their augmentation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ._dataset import Split


class Batch(NamedTuple):
    """x: (B, *); y: (B,); index: (B,) rows of the split."""

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment]  # tuples have a method of that name

    def __repr__(self) -> str:
        return f"Batch({len(self.x)} inputs of shape {tuple(self.x.shape[1:])})"


Augmentation = Callable[..., Tensor]
"""(x, generator=…) → inputs like x."""


@dataclass(frozen=True)
class CropAndFlip:
    """A random crop of the image with a border of `padding` zeros, mirrored half of the time.

    >>> import torch
    >>> CropAndFlip(4)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 3, 32, 32])
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding should not be negative; got {self.padding}")

    def __call__(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """x: (B, C, H, W) → the same shape. The draws are made on the CPU."""
        if x.ndim != 4:
            raise ValueError(f"x should be images, (B, C, H, W); got {tuple(x.shape)}")
        down, right = torch.randint(2 * self.padding + 1, (2, len(x), 1), generator=generator)
        mirrored = torch.rand(len(x), 1, generator=generator) < (0.5 if self.flip else 0.0)
        width = torch.arange(x.shape[3])
        rows = down + torch.arange(x.shape[2])
        columns = right + torch.where(mirrored, width.flip(0), width)
        padded_width = x.shape[3] + 2 * self.padding
        places = (rows[:, :, None] * padded_width + columns[:, None]).flatten(1).to(x.device)
        pixels = F.pad(x, [self.padding] * 4).flatten(2)
        return pixels.gather(2, places[:, None].expand(-1, x.shape[1], -1)).view_as(x)


class Batches:
    """Iterating gives the batches of one epoch; iterating again gives the next epoch's.

    A batch depends only on the seed, the epoch and the position in the epoch, so the state is
    (epoch, position): after :meth:`load_state_dict` the same batches follow as after
    :meth:`state_dict`. Iterating again after a `break` continues the same epoch.

    examples: a split, or a pair of tensors (x, y); augment: for instance :class:`CropAndFlip`;
    shuffle: a new order in each epoch; smallest: if the last batch of an epoch has fewer rows, they
    join the batch before it, because one row has no variance for BatchNorm and the penalty; extra:
    more examples; every batch draws `extra_share` of its rows from them, with replacement (Gowal et
    al., 2021). The epoch keeps its length, and their index starts at the length of the split.
    """

    def __init__(
        self, examples: Split | tuple[Tensor, Tensor], batch_size: int, *, seed: int = 0,
        augment: Augmentation | None = None, shuffle: bool = True, smallest: int = 2,
        extra: Split | None = None, extra_share: float = 0.7,
    ) -> None:  # fmt: skip
        self.examples = examples if isinstance(examples, Split) else Split(*examples)
        self.y = self.examples.y
        if isinstance(augment, type):
            raise ValueError(f"augment should be a callable such as CropAndFlip(); got {augment!r}")
        if batch_size < 1 or seed < 0:
            wanted = "batch_size should be at least 1 and seed zero or more"
            raise ValueError(f"{wanted}; got {batch_size} and {seed}")
        self.batch_size, self.seed, self.shuffle = batch_size, seed, shuffle
        self.augment, self.smallest = augment, smallest
        self.extra, self.extra_share = extra, extra_share
        self.epoch = 0
        self.position = 0  # batches of this epoch that were yielded

    def __repr__(self) -> str:
        place = f"epoch {self.epoch}, batch {self.position} of {len(self)}"
        size = f"{len(self.y):,} examples by {self.batch_size}"
        return f"Batches({size}, seed={self.seed}; at {place})"

    def __len__(self) -> int:
        """Batches in one epoch."""
        full, rest = divmod(len(self.y), self.batch_size)
        return full if full and rest < self.smallest else full + (rest > 0)

    def __iter__(self) -> Iterator[Batch]:
        order = torch.arange(len(self.y))
        if self.shuffle:
            order = torch.randperm(len(self.y), generator=self._generator(0))
        indices = order.tensor_split([k * self.batch_size for k in range(1, len(self))])
        while self.position < len(indices):
            batch = self._batch(indices[self.position])
            # Counted before the yield, so that a state saved after the step excludes this batch.
            self.position += 1
            yield batch
        self.epoch, self.position = self.epoch + 1, 0

    def _batch(self, index: Tensor) -> Batch:
        rows = index.to(self.y.device)
        x, y, generator = self.examples.rows(rows), self.y[rows], self._generator(1 + self.position)
        if self.extra is not None:
            kept = len(index) - round(self.extra_share * len(index))
            drawn = torch.randint(len(self.extra), (len(index) - kept,), generator=generator)
            more = drawn.to(self.y.device)
            # Mixed, so that every process and micro-batch gets its share of both.
            mixed = torch.randperm(len(index), generator=generator)
            x = torch.cat([x[:kept], self.extra.rows(more)])[mixed.to(x.device)]
            y = torch.cat([y[:kept], self.extra.y[more]])[mixed.to(y.device)]
            index = torch.cat([index[:kept], len(self.y) + drawn])[mixed]
        if self.augment is not None:
            x = self.augment(x, generator=generator)
        return Batch(x, y, index)

    def _generator(self, purpose: int) -> torch.Generator:
        """Randomness for one purpose in this epoch: 0 for its order, k + 1 for its batch k."""
        # The CPU generator uses 32 bits of its seed, so the three numbers are mixed into 32 bits.
        mixed = np.random.SeedSequence((self.seed, self.epoch, purpose)).generate_state(1)
        return torch.Generator().manual_seed(int(mixed[0]))

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the position in it, and the options, which have to match on loading."""
        return {
            "epoch": self.epoch, "position": self.position, "examples": len(self.y),
            "batch_size": self.batch_size, "seed": self.seed, "shuffle": self.shuffle,
            "extra": None if self.extra is None else [self.extra.hash, self.extra_share],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` with the same data and options."""
        for name, here in self.state_dict().items():
            if name not in ("epoch", "position") and state.get(name) != here:
                saved = f"the saved state is of batches with {name}={state.get(name)}"
                raise ValueError(f"{saved}; here it is {here}, which would give other batches")
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
