"""Scores of a whole data set, computed once and read from a file afterwards."""

import errno
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from taser._files import Progress, read_json, write_atomically

from ._score import NoisedScore


class StaleCache(ValueError):
    """A cache of another score or other data, or an incomplete one."""


def weights_hash(module: nn.Module) -> str:
    """The sha256 of every tensor of a module, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        # As bytes, since numpy has no bfloat16.
        digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def model_hash(score: NoisedScore) -> str:
    """The hash of a score's network, which identifies its cache."""
    denoise = getattr(score, "denoise", None)
    network = denoise if isinstance(denoise, nn.Module) else score
    if not network.state_dict():
        raise ValueError("a cached score needs a network with weights: give from_edm an nn.Module")
    return weights_hash(network)


def write_cache(
    folder: Path, score: NoisedScore, x: Tensor, *,
    data: str, batch: int = 256, progress: Progress | None = None,
) -> None:  # fmt: skip
    """s at every row of x, (N, *), into `folder`, new or empty, as half-precision numbers.

    data: the hash of what x came from. The manifest is written last: without it there is no cache.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: give another folder, or remove this one")
    path = folder / "scores.npy"
    # A mapped file on a full disk would end the process without a message, so check before.
    if shutil.disk_usage(folder).free < 1.1 * (needed := 2 * x.numel()):
        message = f"the scores take {needed / 1e6:,.0f} MB; make room"
        raise OSError(errno.ENOSPC, message, str(folder))
    shape, model = tuple(x.shape), model_hash(score)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    for start in range(0, len(x), batch):
        s = score(x[start : start + batch])
        if not float(s.abs().max()) <= 65504:  # nan, too
            raise ValueError("the score has entries beyond half precision's range, or not finite")
        file[start : start + len(s)] = s.half().cpu().numpy()
        if progress:
            progress(start + len(s), len(x), "scores")
    file.flush()
    manifest = {"data": data, "model": model, "sigma": score.sigma, "shape": shape,
                "checksum": _checksum(file)}  # fmt: skip
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")


def read_cache(folder: Path, *, verify: bool = True, **expected: Any) -> np.ndarray:
    """The cached scores, memory-mapped, (N, *) of float16.

    expected: entries of the manifest that have to hold, such as data= and model= hashes.
    """
    path = folder / "manifest.json"
    if not path.exists():
        raise StaleCache(f"{folder} holds no whole score cache: make it with `taser score cache`")
    manifest = read_json(path, "shape", "checksum")
    for name, wanted in expected.items():
        if manifest.get(name) != wanted:
            was = f"was made for {name} = {manifest.get(name)}, not {wanted}"
            raise StaleCache(f"the score cache in {folder} {was}: make a new one (`score cache`)")
    try:
        scores = np.load(folder / "scores.npy", mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy parses a damaged header as Python
        raise StaleCache(f"the score cache in {folder} cannot be read: {error}") from error
    whole = list(scores.shape) == manifest["shape"] and scores.dtype == np.float16
    if not whole or (verify and _checksum(scores) != manifest["checksum"]):
        raise StaleCache(f"the score cache in {folder} is damaged: make a new one")
    return scores


def _checksum(scores: np.ndarray) -> str:
    return hashlib.sha256(scores.reshape(-1).view(np.uint8).data).hexdigest()
