"""A model by name, built-in or from the user's code, and weights from files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from taser._files import read_json
from taser._names import call_named

from ._architectures import OneOutput, TwoLogits, build

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt")
WRAPPERS = ("state_dict", "model", "model_state_dict", "net")  # keys of a checkpoint
PREFIXES = ("module.", "_orig_mod.", "model.")  # from DataParallel, torch.compile, wrappers


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The state dict in a .safetensors, .pt, .pth or .ckpt file; nothing in it can run."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"weights should end in {', '.join(SUFFIXES)}; got {path}")
    if not path.is_file():
        raise FileNotFoundError(f"there are no weights at {path}")
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    except Exception as error:  # damaged pickles fail in many ways
        advice = "save model.state_dict() instead, best as .safetensors"
        why = f"a pickled model would run code when it is loaded: {advice}"
        raise ValueError(f"{path} cannot be read as weights alone; {why}") from error
    for _ in WRAPPERS:  # a mapping may contain itself
        inner = [loaded.get(key) for key in WRAPPERS if isinstance(loaded, Mapping)]
        loaded = next((value for value in inner if isinstance(value, Mapping)), loaded)
    if not isinstance(loaded, Mapping) or not loaded:
        raise ValueError(f"{path} should hold a state dict; got {type(loaded).__name__}")
    if other := [str(key) for key, value in loaded.items()
                 if not (isinstance(key, str) and isinstance(value, Tensor))]:  # fmt: skip
        wanted = f"a state dict, bare or under {', '.join(WRAPPERS)}"
        raise ValueError(f"{path} should hold {wanted}; no named tensors are {_first(other)}")
    return dict(loaded)


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Load a file's weights into `model`, all or none; prefixes such as "module." are removed."""
    own, state = model.state_dict(), read_weights(path)
    while not state.keys() & own.keys():
        prefix = next((p for p in PREFIXES if all(key.startswith(p) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    misfits = [
        f"{key} ({tuple(state[key].shape)} in the file, {tuple(own[key].shape)} in the model)"
        for key in state.keys() & own.keys()
        if state[key].shape != own[key].shape
    ]
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own]
    wrong = {"missing": missing, "unexpected": unexpected, "of another shape": sorted(misfits)}
    if listed := [f"{len(keys)} {how}: {_first(keys)}" for how, keys in wrong.items() if keys]:
        raise ValueError(f"the weights in {path} are not this model's: {'; '.join(listed)}")
    model.load_state_dict(state)


def weights_hash(module: nn.Module) -> str:
    """The sha256 of every tensor of a module, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        # As bytes, since numpy has no bfloat16.
        digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _first(keys: list[str]) -> str:
    return ", ".join([*keys[:3], *(["…"] if len(keys) > 3 else [])])


def load_model(
    spec: str, weights: Path | str | None = None, *, classes: int | None, shape: tuple[int, ...],
    outputs: OneOutput | None = None, **options: Any,
) -> nn.Module:  # fmt: skip
    """The model that `spec` names, in evaluation mode, checked on two inputs of zeros.

    spec: a built-in name ("resnet18", …), or a callable of yours that returns the model:
    "package.module:callable" or "path/to/file.py:callable". **The latter two run the code in that
    module or file**, so name only code that you trust.

    weights: a .safetensors file, or a .pt, .pth or .ckpt with a state dict; no code in it runs; for
    a built-in model it contains the normalisation; classes, shape: the model maps (B, *shape) →
    (B, classes), for regression (classes None or 1) also → (B,); outputs: what the single output of
    a binary classifier means, for :class:`TwoLogits`, unless the model has an attribute `outputs`;
    options: arguments of :func:`build`, or of the callable.

    >>> model = load_model("cnn", classes=10, shape=(1, 8, 8), activation="silu")
    >>> model.training
    False
    """
    if ":" in spec:
        model = call_named(spec, (nn.Module,), "an nn.Module", **options)
    elif spec.endswith(".py"):
        raise ValueError(f"which callable in the file? Write {spec + ':callable'!r}")
    else:
        model = build(spec, classes=1 if outputs else classes, shape=shape, **options)
    if weights is not None:
        load_weights(model, weights)
        # The shapes of weights do not show the activation.
        beside = Path(weights).expanduser().parent / "model.json"
        if ":" not in spec and beside.is_file():
            trained = dict(read_json(beside).get("options") or {}).get("activation", "relu")
            if trained != (given := options.get("activation", "relu")):
                what = f"{weights} was trained with activation={trained}, not {given}"
                way = f"name the run's folder instead, or give model.activation={trained}"
                raise ValueError(f"{what}: {way}")
    model = (TwoLogits(model, outputs) if outputs else TwoLogits.where_said(model)).eval()
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    try:
        with torch.no_grad():
            outputs = model(like.new_zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        what = f"does not take the inputs of these data (data.name), of shape {tuple(shape)}"
        raise ValueError(f"{spec} {what}: {error}") from error
    allowed = [(2, 1), (2,)] if classes in (None, 1) else [(2, classes)]
    got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if got not in allowed:
        wanted = " or ".join(map(str, allowed))
        of = "" if classes is None else f", as the data have {classes} classes"
        inputs = f"for two inputs of shape {shape}"
        raise ValueError(f"{spec} should give {wanted} {inputs}{of}; got {got}")
    return model
