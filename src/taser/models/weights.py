"""Weights from a file into a network, whoever saved them."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt")
WRAPPERS = ("state_dict", "model", "model_state_dict", "net")
"""Where training scripts put the state dict inside a checkpoint."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DataParallel, torch.compile and wrappers put before every name."""
SHOWN = 3


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The state dict in a .safetensors (which can hold no code), .pt, .pth or .ckpt file.

    Pickled files are read with `weights_only=True`: tensors and plain containers, and nothing that
    could run.
    """
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
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read as weights alone. If it holds a pickled model, which would run "
            "code when it is loaded, save model.state_dict() instead, best as .safetensors"
        ) from error
    return _state_dict(loaded, path)


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Put the weights of a file into `model`, all of them or none.

    Prefixes that wrappers leave ("module.", "_orig_mod.", "model.") are taken off until names meet.
    """
    own = model.state_dict()
    state = _without_prefix(read_weights(path), own)
    misfits = [
        f"{key} ({tuple(state[key].shape)} in the file, {tuple(own[key].shape)} in the model)"
        for key in state.keys() & own.keys()
        if state[key].shape != own[key].shape
    ]
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own]
    wrong = {"missing": missing, "unexpected": unexpected, "of another shape": sorted(misfits)}
    if any(wrong.values()):
        listed = "; ".join(
            f"{len(keys)} {how}: {_first(keys)}" for how, keys in wrong.items() if keys
        )
        raise ValueError(f"the weights in {path} are not this model's: {listed}")
    model.load_state_dict(state)


def _state_dict(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The names and tensors inside what a checkpoint holds."""
    while isinstance(loaded, Mapping):
        inner = [loaded[key] for key in WRAPPERS if isinstance(loaded.get(key), Mapping)]
        if not inner:
            break
        loaded = inner[0]
    if not isinstance(loaded, Mapping) or not loaded:
        raise ValueError(
            f"{path} should hold a state dict; got {type(loaded).__name__}: {loaded!r:.80}"
        )
    strange = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if strange:
        raise ValueError(
            f"{path} should hold a state dict, bare or under {', '.join(WRAPPERS)}; "
            f"these are no tensors: {_first(strange)}"
        )
    return dict(loaded)


def _without_prefix(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    while not state.keys() & own.keys():
        prefix = next((p for p in PREFIXES if all(key.startswith(p) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _first(keys: list[str]) -> str:
    return ", ".join(keys[:SHOWN]) + (", …" if len(keys) > SHOWN else "")
