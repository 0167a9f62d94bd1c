"""Probes, scalars of a network's outputs for the Stein operator; and losses of each example."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from taser._runtime import full_precision, warn_user, wrap_public_api

__all__ = ["Logit", "Margin", "Output", "Probe", "Probed"]

Probe = Callable[[Tensor, Tensor | None], Tensor]
"""(outputs (B, *), labels (B,) or None) → (B,): any callable of this form will do."""
AttackLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, y) → (B,): larger is worse for the model."""


@dataclass(frozen=True)
class Probed:
    """The scalar function f(x) = probe(model(x), y) of a batch with labels y.

    x may hold n·B rows, copies of the batch one after another; labels are repeated to match.
    """

    model: Callable[[Tensor], Tensor]
    probe: Probe
    y: Tensor | None = field(default=None, repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.probe(self.model(x), self.labels(len(x)))

    def labels(self, rows: int) -> Tensor | None:
        """The labels, repeated to `rows` rows."""
        if self.y is None:
            return None
        copies, rest = divmod(rows, len(self.y))
        if rest:
            raise ValueError(f"x has {rows} rows, which is no multiple of the {len(self.y)} labels")
        return self.y if copies == 1 else self.y.repeat(copies, *[1] * (self.y.ndim - 1))


class Margin:
    """m(x; y) = LSE_{j≠y} z_j − z_y, negative iff p_y > 1/2; an upper bound of the hard margin.

    Half-precision logits are cast to float32 first.

    >>> import torch
    >>> Margin()(torch.tensor([[2.0, -1.0]]), torch.tensor([0]))  # two classes: z_1 − z_0
    tensor([-3.])
    """

    _checked = False

    def __call__(self, z: Tensor, y: Tensor | None) -> Tensor:
        """z: (B, C) logits; y: (B,) labels; returns (B,)."""
        if y is None:
            raise ValueError("Margin compares the labelled class with the rest: it needs labels y")
        if not self._checked or z.device.type == "cpu":  # reading back stalls an accelerator
            check_logits(z, y, "Margin")
            self._checked = True
        z, index = full_precision(z), y.long()[:, None]
        others = z.scatter(1, index, -torch.inf).logsumexp(1)
        return others - z.gather(1, index).squeeze(1)

    def __repr__(self) -> str:
        return "Margin()"


class Logit:
    """z_k for a fixed class k = `index`, or the labelled class z_y when `index` is None."""

    def __init__(self, index: int | None = None) -> None:
        if index is not None and index < 0:
            raise ValueError(f"index should be a class number, 0 or more; got {index}")
        self.index = index
        self._checked = False

    def __call__(self, z: Tensor, y: Tensor | None) -> Tensor:
        """z: (B, C) logits; y: (B,) labels, unused with a fixed index; returns (B,)."""
        y = y if self.index is None else None
        if self.index is None and y is None:
            raise ValueError("Logit() reads the labelled class: give labels y, or an index")
        if not self._checked or z.device.type == "cpu":  # reading back stalls an accelerator
            check_logits(z, y, "Logit")
            if self.index is not None and self.index >= z.shape[1]:
                raise ValueError(f"Logit({self.index}): the model has only {z.shape[1]} classes")
            self._checked = True
        z = full_precision(z)
        return z[:, self.index] if y is None else z.gather(1, y.long()[:, None]).squeeze(1)

    def __repr__(self) -> str:
        return f"Logit({'' if self.index is None else self.index})"


class Output:
    """One output, for regression: column `index` of outputs of shape (B, m), or (B,)."""

    def __init__(self, index: int = 0) -> None:
        if index < 0:
            raise ValueError(f"index should be an output number, 0 or more; got {index}")
        self.index = index

    def __call__(self, outputs: Tensor, y: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """outputs: (B,) or (B, m); returns (B,)."""
        columns = outputs[:, None] if outputs.ndim == 1 else outputs
        if columns.ndim != 2 or self.index >= columns.shape[1]:
            wanted = f"{self!r} wants outputs of shape (B, m) with m > {self.index}, or (B,) for 0"
            raise ValueError(f"{wanted}; got {tuple(outputs.shape)}")
        return full_precision(columns[:, self.index])

    def __repr__(self) -> str:
        return f"Output({self.index})"


def cross_entropy(logits: Tensor, y: Tensor | None) -> Tensor:
    """CE(z, y). logits: (B, C) → (B,)."""
    if y is None:
        raise ValueError("the cross-entropy needs labels y")
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j≠y} z_j − z_y: positive when the model errs; unlike CE it cannot saturate. (B,)."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.masked_fill(F.one_hot(y, logits.shape[1]).bool(), -torch.inf)
    return others.amax(1) - own


def kl_divergence(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(softmax(p) ‖ softmax(q)) of each example, in full precision: (B, C), (B, C) → (B,)."""
    p, q = (full_precision(logits).log_softmax(1) for logits in (p_logits, q_logits))
    return (p.exp() * (p - q)).sum(1)


def kl_from(clean: Tensor) -> AttackLoss:
    """KL(softmax(clean) ‖ softmax(z)), the loss that TRADES attacks. clean: (B, C) logits."""
    clean = clean.detach()
    return lambda logits, _: kl_divergence(clean, logits)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """(f(x) − y)², averaged over what is predicted for one example. (B,)."""
    return (outputs.reshape(y.shape) - y).square().reshape(len(y), -1).mean(1)


def task_loss(loss: AttackLoss, y: Tensor) -> AttackLoss:
    """The loss, or the squared error for the targets of a regression."""
    return squared_error if y.is_floating_point() else loss


def check_logits(z: Tensor, y: Tensor | None, name: str) -> None:
    """Raise unless z is (B, C) with C ≥ 2 and y, if given, holds B class numbers below C."""
    if not isinstance(z, Tensor):
        wrapped = "taser.models.Wrapped(lambda x: model(x)[0], model), or with model(x).logits"
        raise ValueError(
            f"{name} wants logits (B, C); got a {type(z).__name__}. Wrap it: {wrapped}"
        )
    if z.ndim != 2 or z.shape[1] < 2 or not z.is_floating_point():
        got = str(tuple(z.shape) if z.is_floating_point() else z.dtype)
        wanted = f"{name} wants logits (B, C) of at least two classes; got {got}"
        raise ValueError(f"{wanted}. For a single output use taser.probes.Output()")
    batch, classes = z.shape
    if not isinstance(y, Tensor | None):
        raise ValueError(f"{name} wants labels y as a tensor; got {type(y).__name__}")
    numbers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if y is not None and (y.shape != (batch,) or y.dtype not in numbers):
        # len(y) alone may mislead: the batch may be a part of the user's.
        many = f"{len(y)} for {batch} inputs" if y.ndim == 1 and len(y) != batch else ""
        given = many or f"{y.dtype}, in {y.ndim} dimension(s)"
        raise ValueError(f"{name} wants labels y, one whole number for each input; got {given}")
    if y is not None and not bool(((y >= 0) & (y < classes)).all()):
        given = f"labels from {int(y.min())} to {int(y.max())}"
        raise ValueError(f"{name} wants labels in 0…{classes - 1}, its classes; got {given}")
    if looks_like_probabilities(z):
        warn_user(
            f"{name} was given rows that are not negative and sum to one: probabilities, not "
            "logits. A saturated probe has no gradient; remove the softmax from the model"
        )


def looks_like_probabilities(z: Tensor) -> bool:
    """Every row non-negative and summing to one (within the type's rounding)."""
    tolerance = max(8 * torch.finfo(z.dtype).eps, 1e-5)
    rest = z.detach().to(torch.float32).sum(1) - 1
    return bool((z >= 0).all()) and bool((rest.abs() <= tolerance).all())


wrap_public_api(globals(), ("Logit", "Output"), ("__init__",))  # checks argument types
wrap_public_api(globals(), ("Probed",))  # checks argument types
