"""Where a record comes from: what it takes to have the same one again."""

import hashlib
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from taser.attacks import Attack, Model
from taser.data.digest import sha256_of_arrays
from taser.scores.cache import weights_hash
from taser.stein.guards import roots, untouched_randomness

from .answers import answers

PACKAGES = ("taser", "torch", "numpy", "pyautoattack")


@dataclass(frozen=True)
class Provenance:
    """Seeds, hashes, settings and versions.

    weights: sha256 of the model's tensors; answers: of the classes that it gives to the clean
    examples, because the same weights may be used in another way; data: of the examples' x and y;
    attacks: each in full.
    """

    seed: int
    batch_size: int
    weights: str
    data: str
    attacks: dict[str, str]
    versions: dict[str, str]
    answers: str = ""  # older records do not say

    @classmethod
    def of(
        cls, model: Model, x: Tensor, y: Tensor, attacks: Sequence[Attack], seed: int, batch: int
    ) -> "Provenance":
        """That of an evaluation of `model` on x, (n, *), and y, (n,)."""
        return cls(
            seed=seed,
            batch_size=batch,
            weights=hash_of_model(model),
            data=sha256_of_arrays([x.numpy(force=True), y.numpy(force=True)]),
            attacks={attack.name: described(attack) for attack in attacks},
            versions={"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
            answers=_hash_of_answers(model, x, seed, batch),
        )


def hash_of_model(model: Model) -> str:
    """sha256 of the names and tensors of every module behind a model; empty if there is none."""
    hashes = [weights_hash(root) for root in roots(model)]
    return (
        hashlib.sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else "".join(hashes)
    )


def _hash_of_answers(model: Model, x: Tensor, seed: int, batch: int) -> str:
    with seeded(x.device, seed):
        return sha256_of_arrays([answers(model, x, batch).numpy(force=True)])


def described(value: Any) -> str:
    """An attack and its options in words that are the same in every process.

    >>> from taser.attacks import RestartedPGD
    >>> described(RestartedPGD(steps=3))[:68]
    "RestartedPGD(threat=Threat(norm='linf', epsilon=0.03137254901960784,"
    """
    if isinstance(value, nn.Module):
        return f"{type(value).__name__} {weights_hash(value)}"
    if is_dataclass(value) and not isinstance(value, type):
        listed = (f"{f.name}={described(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({', '.join(listed)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, Tensor):
        return f"Tensor {sha256_of_arrays([value.numpy(force=True)])}"
    if callable(value):  # its address would differ each time
        name = getattr(value, "__qualname__", type(value).__name__)
        own = {} if hasattr(value, "__qualname__") else getattr(value, "__dict__", {})
        held = [f"{key}={described(own[key])}" for key in own if not key.startswith("_")]
        if held:
            return f"{name}({', '.join(held)})"
        return f"{name} {hash_of_model(value)}".rstrip()  # a function around a network
    return repr(value)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """For a model that draws: the same numbers each time, and the global state is put back."""
    with untouched_randomness(device):
        torch.manual_seed(seed)
        yield


def generator_for(device: torch.device, *parts: object) -> torch.Generator:
    """Randomness that depends on what it is for, and on nothing that came before."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1  # manual_seed takes 63 bits
    return torch.Generator(device).manual_seed(seed)
