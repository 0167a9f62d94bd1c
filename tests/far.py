"""A simulated GPU: tensors there compute on the CPU, and refuse to meet CPU tensors.

What forgets to move its inputs, or to make new tensors where the others are, fails here as it would
on a GPU. The device is called "meta", the only one besides the CPU that every build of PyTorch lets
autograd work with.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

FAR = torch.device("meta")
NUMBERS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_same_size")
MAY_MEET = ("aten::copy_", "aten::_to_copy")  # these carry from one to the other
INDEXED = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")


class FarTensor(Tensor):
    """A tensor on the far device, whose numbers are those of `near`."""

    near: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: Tensor) -> "FarTensor":
        far = Tensor._make_wrapper_subclass(
            cls, near.size(), strides=near.stride(), storage_offset=near.storage_offset(),
            dtype=near.dtype, device=FAR,
        )  # fmt: skip
        far.near = near
        return far

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"FarTensor({self.near!r})"

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TypeError("a tensor on the far device has to be copied to the CPU first")
        return self.near.numpy(force=True)

    def tolist(self) -> list:
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Sequence, kwargs: dict) -> Any:
    """One operation, by the CPU; its results are where a GPU would leave them."""
    name = func.name().partition(".")[0]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    far = [tensor for tensor in tensors if isinstance(tensor, FarTensor)]
    near = [t for t in tensors if not isinstance(t, FarTensor) and t.ndim > 0]
    goes_far = bool(far)
    if name in MAY_MEET or name in INDEXED:
        goes_far = isinstance(args[0], FarTensor)
    if kwargs.get("device") is not None:
        goes_far = torch.device(kwargs["device"]) == FAR
    forbidden = not goes_far if name in INDEXED else name not in MAY_MEET
    if far and near and forbidden:
        raise RuntimeError(f"{func.name()}: tensors on the far device and on the CPU meet")
    own, options = tree_map(_near, (tuple(args), kwargs))
    result = func(*own, **options)
    if not goes_far or name in NUMBERS:
        return result
    result = tree_map(lambda t: FarTensor(t) if isinstance(t, Tensor) else t, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if far else result


def _near(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.near if isinstance(value, FarTensor) else value


class _Factories(TorchDispatchMode):
    """Tensors that are made on the far device, or carried there, become far tensors."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        return computed(func, args, kwargs or {})


class _Generator(torch.Generator):
    """A generator of the CPU that reports the far device."""

    device = FAR  # type: ignore[assignment]

    def __new__(cls, device: torch.device | str = "cpu") -> torch.Generator:
        near = torch.device(device).type == "cpu"
        return torch._C.Generator() if near else super().__new__(cls)


def _made(make: Callable[..., Tensor], *args: Any, device: Any = None, **options: Any) -> Tensor:
    tensor = make(*args, **options)
    return tensor if device is None else tensor.to(device)


@contextmanager
def far_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """While inside, `FAR` can be computed on."""
    autocast = torch.autocast
    monkeypatch.setattr(torch, "Generator", _Generator)
    for name in ("tensor", "as_tensor"):  # which no mode intercepts
        monkeypatch.setattr(torch, name, partial(_made, getattr(torch, name)))
    monkeypatch.setattr(
        torch,
        "autocast",
        lambda kind, *a, **k: autocast("cpu" if kind == FAR.type else kind, *a, **k),
    )
    monkeypatch.setattr(torch.random, "fork_rng", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: FAR)
    monkeypatch.setattr(Accelerator, "device", FAR)
    with _Factories():
        yield FAR
