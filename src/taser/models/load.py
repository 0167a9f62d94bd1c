"""A model to study: a built-in one or the user's own, with weights from a file."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taser.locate import locate

from .build import build
from .weights import load_weights


def load_model(
    spec: str,
    weights: Path | str | None = None,
    *,
    classes: int | None,
    shape: tuple[int, ...],
    **options: Any,
) -> nn.Module:
    """The model that `spec` names, in evaluation mode, checked on two inputs of zeros.

    spec
        A built-in name ("resnet18", …), or a callable of yours that returns the model:
        "package.module:callable" or "path/to/file.py:callable". **The latter two run the code in
        that module or file**, so name only what you trust.
    weights
        A .safetensors file, or a .pt, .pth or .ckpt with a state dict, from which no code runs.
        For a built-in model they bring the normalisation with them.
    classes, shape
        What the model has to give and take: (B, *shape) → (B, classes); for regression (classes
        None or 1) also (B,).
    options
        For a built-in name those of :func:`build`; otherwise the callable's own arguments, which
        get nothing else.

    >>> model = load_model("cnn", classes=10, shape=(1, 8, 8), activation="silu")
    >>> model.training
    False
    """
    model = _make(spec, classes, shape, options)
    if weights is not None:
        load_weights(model, weights)
        if ":" not in spec:
            _check_activation(Path(weights).expanduser(), options.get("activation", "relu"))
    model.eval()
    _check_outputs(spec, model, classes, tuple(shape))
    return model


def _make(
    spec: str, classes: int | None, shape: tuple[int, ...], options: dict[str, Any]
) -> nn.Module:
    if ":" not in spec:
        if spec.endswith(".py"):
            raise ValueError(f"which callable in the file? Write {spec + ':callable'!r}")
        return build(spec, classes=classes, shape=shape, **options)
    make = locate(spec)
    if isinstance(make, nn.Module):
        raise ValueError(f"{spec} is a model already; name a function that returns one")
    try:
        signature(make).bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "no options"
        raise ValueError(f"{spec} cannot be called with {given}: {error}") from error
    model = make(**options)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{spec} should return an nn.Module; got {type(model).__name__}")
    return model


def _check_activation(weights: Path, activation: object) -> None:
    """Raise if the weights lie in the folder of a run whose network has another.

    Nothing in the shape of the weights would tell.
    """
    beside = weights.parent / "model.json"
    if not beside.is_file():
        return
    own = json.loads(beside.read_text()).get("options", {}).get("activation", "relu")
    if own != activation:
        raise ValueError(
            f"{weights} was trained with activation={own}, not {activation}: name the run's folder "
            f"instead, or give the option activation={own} (for taser finetune "
            f"model.activation={own})"
        )


def _check_outputs(
    spec: str, model: nn.Module, classes: int | None, shape: tuple[int, ...]
) -> None:
    own = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    try:
        with torch.no_grad():
            outputs = model(own.new_zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{spec} does not take the inputs of these data, of shape "
            f"{shape}: {error}. Other data have another name (data.name=… for taser finetune)"
        ) from error
    allowed = [(2, 1), (2,)] if classes in (None, 1) else [(2, classes)]
    if not isinstance(outputs, Tensor) or tuple(outputs.shape) not in allowed:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        wanted = " or ".join(map(str, allowed))
        raise ValueError(f"{spec} should give {wanted} for two inputs of shape {shape}; got {got}")
