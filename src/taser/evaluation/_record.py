"""What an evaluation found, example by example."""

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from taser._files import sha256_of_arrays
from taser.attacks import Attack, Model, Threat
from taser.scores._score_cache import weights_hash
from taser.stein._model_state import check_module, eval_mode, restored_rng


@dataclass(frozen=True)
class Finding:
    """Something odd about a model, its data or an attack, in one sentence.

    name: short and the same for every model, such as "probabilities".
    """

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts:
    """One attack's result on each example.

    standing: (n,) bool, right on the clean input and under this attack; distance: (n,), how far the
    input that broke it lies from x, zero where nothing did; stage: (n,) which stage of a cascade
    broke it, −1 where none did; stages: their names; seconds: spent on it.
    """

    standing: Tensor
    distance: Tensor
    stage: Tensor
    stages: tuple[str, ...]
    seconds: float = 0.0

    def __repr__(self) -> str:
        right = f"{int(self.standing.sum())} of {len(self.standing)} stand"
        return f"Verdicts({right}; stages {', '.join(self.stages)}; {self.seconds:.1f} s)"

    @property
    def accuracy(self) -> float:
        """The share of examples that stand."""
        return int(self.standing.sum()) / len(self.standing)

    def after(self, clean: Tensor) -> dict[str, float]:
        """Robust accuracy after each stage in turn. clean: (n,) bool."""
        return {
            name: int((clean & ~((self.stage >= 0) & (self.stage <= i))).sum()) / len(clean)
            for i, name in enumerate(self.stages)
        }

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "accuracy": self.accuracy,
            "stages": list(self.stages),
            "seconds": round(self.seconds, 3),
            "standing": self.standing.int().tolist(),
            "distance": [round(value, 7) for value in self.distance.tolist()],
            "stage": self.stage.tolist(),
        }

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`numbers`."""
        return cls(
            torch.tensor(numbers["standing"]).bool(), torch.tensor(numbers["distance"]),
            torch.tensor(numbers["stage"]), tuple(numbers["stages"]), numbers["seconds"],
        )  # fmt: skip


def answers(model: Model, x: Tensor, batch_size: int = 100) -> Tensor:
    """The class of the largest logit, (B, *) → (B,); −1 for NaN, which is no answer."""
    device = device_of(model, x)
    with eval_mode(model, freeze=True), torch.no_grad():
        parts = [model(part.to(device, copy=True)) for part in x.split(batch_size)]
    logits = torch.cat(parts).to(x.device)
    return logits.argmax(1).masked_fill(logits.isnan().any(1), -1)


def device_of(model: Model, x: Tensor) -> torch.device:
    """Where the weights are, so that x can go there; where x is, if there are none."""
    module = check_module(model)
    return next((t.device for t in chain(module.parameters(), module.buffers())), x.device)


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
    """sha256 of the names and tensors of a model."""
    return weights_hash(check_module(model))


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
        return f"{name}({', '.join(held)})" if held else name
    return repr(value)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """For a model that draws: the same numbers each time, and the global state is put back."""
    with restored_rng(device):
        torch.manual_seed(seed)
        yield


def generator_for(device: torch.device, *parts: object) -> torch.Generator:
    """Randomness that depends on what it is for, and on nothing that came before."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1  # manual_seed takes 63 bits
    return torch.Generator(device).manual_seed(seed)


FORMAT = 1


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A model judged on n examples.

    index: (n,), their rows in the data given; y: (n,) labels; clean: (n,) bool, right without an
    attack; attacks: the verdicts of each, in the order they were run; attacked: (n, *), the input
    that broke each example first, x itself where none did. It is not part of the JSON.
    """

    threat: Threat
    index: Tensor
    y: Tensor
    clean: Tensor
    attacks: dict[str, Verdicts]
    findings: tuple[Finding, ...]
    provenance: Provenance
    attacked: Tensor | None = None

    def __repr__(self) -> str:
        attacks = ", ".join(f"{name} {100 * v.accuracy:.1f} %" for name, v in self.attacks.items())
        return (
            f"Evaluation({self.threat}, n={self.n}: clean {100 * self.clean_accuracy:.1f} %, "
            f"{attacks}, worst case {100 * self.robust_accuracy:.1f} %; "
            f"{len(self.findings)} findings)"
        )

    @property
    def n(self) -> int:
        """The number of examples."""
        return len(self.index)

    @property
    def clean_accuracy(self) -> float:
        """The share that is right without an attack."""
        return int(self.clean.sum()) / self.n

    def accuracy(self, attack: str) -> float:
        """The share that is right under one attack."""
        return self.attacks[attack].accuracy

    @property
    def standing(self) -> Tensor:
        """(n,) bool: right on the clean input and under every attack, the worst case."""
        return torch.stack([self.clean, *(v.standing for v in self.attacks.values())]).all(0)

    @property
    def robust_accuracy(self) -> float:
        """The per-example worst case over all attacks: the figure to quote."""
        return int(self.standing.sum()) / len(self.standing)

    @property
    def paper_average(self) -> float | None:
        """(AutoAttack + SPSA)/2, as the paper's tables have it; None unless both were run."""
        if not {"autoattack", "spsa"} <= self.attacks.keys():
            return None
        return (self.accuracy("autoattack") + self.accuracy("spsa")) / 2

    def to_json(self) -> str:
        """The whole record."""
        return json.dumps(
            {
                "format": FORMAT,
                "n": self.n,
                "clean_accuracy": self.clean_accuracy,
                "robust_accuracy": self.robust_accuracy,
                "paper_average": self.paper_average,
                "threat": asdict(self.threat),
                "findings": [asdict(finding) for finding in self.findings],
                "provenance": asdict(self.provenance),
                "attacks": {name: v.numbers() for name, v in self.attacks.items()},
                "index": self.index.tolist(),
                "y": self.y.tolist(),
                "clean": self.clean.int().tolist(),
            },
            indent=1,
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`."""
        numbers = json.loads(text)
        if numbers.get("format") != FORMAT:
            raise ValueError(f"not a record of an evaluation, of format {FORMAT}")
        return cls(
            threat=Threat(**numbers["threat"]),
            index=torch.tensor(numbers["index"]),
            y=torch.tensor(numbers["y"]),
            clean=torch.tensor(numbers["clean"]).bool(),
            attacks={name: Verdicts.of(v) for name, v in numbers["attacks"].items()},
            findings=tuple(Finding(**finding) for finding in numbers["findings"]),
            provenance=Provenance(**numbers["provenance"]),
        )
