"""The record of an evaluation: verdicts on each example, findings, provenance."""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from taser import __version__
from taser._files import sha256_of_arrays
from taser._runtime import full_precision
from taser.attacks import Attack, Model, Threat
from taser.models._weights import weights_hash
from taser.stein._model_state import check_module, eval_mode, restored_rng


@dataclass(frozen=True)
class Finding:
    """Something odd about a model, its data or an attack, in one sentence."""

    name: str  # short and the same for every model, such as "probabilities"
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts:
    """One attack's result on each example."""

    correct: Tensor  # (n,) bool: right on the clean input and under this attack
    distance: Tensor  # (n,): how far the input that broke it lies from x, zero where nothing did
    stage: Tensor  # (n,): which stage of a cascade broke it, −1 where none did
    stages: tuple[str, ...]  # their names
    seconds: float = 0.0

    def __repr__(self) -> str:
        correct = f"{int(self.correct.sum())} of {len(self.correct)} correct"
        return f"Verdicts({correct}; stages {', '.join(self.stages)}; {self.seconds:.1f} s)"

    @property
    def accuracy(self) -> float:
        """The share of examples that are correct under this attack."""
        return int(self.correct.sum()) / len(self.correct)

    def after(self, clean: Tensor) -> dict[str, float]:
        """Robust accuracy after each stage in turn. clean: (n,) bool."""
        return {
            name: int((clean & ~((self.stage >= 0) & (self.stage <= i))).sum()) / len(clean)
            for i, name in enumerate(self.stages)
        }

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "accuracy": self.accuracy, "stages": list(self.stages),
            "seconds": round(self.seconds, 3), "correct": self.correct.int().tolist(),
            "distance": [round(value, 7) for value in self.distance.tolist()],
            "stage": self.stage.tolist(),
        }  # fmt: skip

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`numbers`."""
        correct = numbers["correct"] if "correct" in numbers else numbers["standing"]  # format 1
        return cls(
            torch.tensor(correct).bool(), torch.tensor(numbers["distance"]),
            torch.tensor(numbers["stage"]), tuple(numbers["stages"]), numbers["seconds"],
        )  # fmt: skip


def predictions(model: Model, x: Tensor, batch_size: int = 100) -> Tensor:
    """The class of the largest logit, (B, *) → (B,); −1 where a logit is NaN."""
    device = device_of(model, x)
    with eval_mode(model, freeze=True), torch.no_grad():
        parts = [model(part.to(device, copy=True)) for part in x.split(batch_size)]
    logits = torch.cat(parts).to(x.device)
    return logits.argmax(1).masked_fill(logits.isnan().any(1), -1)


def device_of(model: Model, x: Tensor) -> torch.device:
    """The device of the weights, or of x for a model without weights."""
    module = check_module(model)
    return next((t.device for t in chain(module.parameters(), module.buffers())), x.device)


@dataclass(frozen=True)
class Provenance:
    """Seeds, hashes, settings and versions."""

    seed: int
    batch_size: int
    weights: str  # sha256 of the model's tensors
    data: str  # sha256 of the examples' x and y
    attacks: dict[str, str]  # each with all options
    versions: dict[str, str]
    answers: str = ""  # sha256 of the clean predictions: two models can share weights

    @classmethod
    def of(
        cls, model: Model, x: Tensor, y: Tensor, attacks: Sequence[Attack], seed: int, batch: int
    ) -> "Provenance":
        """The provenance of an evaluation of `model` on x, (n, *), and y, (n,)."""
        with seeded(x.device, seed):
            found = predictions(model, x, batch)
        packages = ("torch", "numpy", "pyautoattack")
        return cls(
            seed=seed, batch_size=batch, weights=weights_hash(check_module(model)),
            data=sha256_of_arrays([t.numpy(force=True) for t in (full_precision(x), y)]),
            attacks={attack.name: described(attack) for attack in attacks},
            versions={
                "python": platform.python_version(), "taser": __version__,
                **{p: version(p) for p in packages},
            },
            answers=sha256_of_arrays([found.numpy(force=True)]),
        )  # fmt: skip


def described(value: Any) -> str:
    """An attack and its options as text that is the same in every process."""
    if isinstance(value, nn.Module):
        return f"{type(value).__name__} {weights_hash(value)}"
    if isinstance(value, Threat):
        return repr(value)
    if isinstance(value, Threat):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        listed = (f"{f.name}={described(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({', '.join(listed)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, Tensor):
        return f"Tensor {sha256_of_arrays([value.numpy(force=True)])}"
    if callable(value):  # a repr would hold its address
        name = getattr(value, "__qualname__", type(value).__name__)
        fixed = {} if hasattr(value, "__qualname__") else getattr(value, "__dict__", {})
        held = [f"{key}={described(fixed[key])}" for key in fixed if not key.startswith("_")]
        return f"{name}({', '.join(held)})" if held else name
    return repr(value)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global random state, for models that draw, and restore it afterwards."""
    with restored_rng(device):
        torch.manual_seed(seed)
        yield


FORMAT = 2  # format 1 had "standing" for "correct", and the mean of two attacks


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Verdicts on a model, for n examples."""

    threat: Threat
    index: Tensor  # (n,), their rows in the data given
    y: Tensor  # (n,), their labels
    clean: Tensor  # (n,) bool: right without an attack
    attacks: dict[str, Verdicts]  # in the order they were run
    findings: tuple[Finding, ...]
    provenance: Provenance
    x_adv: Tensor | None = None  # (n, *): the input that broke it first, or x; not in the JSON

    def __repr__(self) -> str:
        found = {"clean": self.clean_accuracy}
        found |= {name: v.accuracy for name, v in self.attacks.items()}
        found["worst case"] = self.robust_accuracy
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.items())
        names = ", ".join(dict.fromkeys(finding.name for finding in self.findings))
        return f"Evaluation({self.threat}, n={self.n}: {shares}; findings: {names or 'none'})"

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
    def robust(self) -> Tensor:
        """(n,) bool: right on the clean input and under every attack, the worst case."""
        return self.robust_under(self.attacks)

    def robust_under(self, attacks: Iterable[str]) -> Tensor:
        """(n,) bool: right on the clean input and under all of these attacks."""
        return torch.stack([self.clean, *(self.attacks[a].correct for a in attacks)]).all(0)

    @property
    def robust_accuracy(self) -> float:
        """The per-example worst case over all attacks: the figure to quote."""
        return int(self.robust.sum()) / self.n

    def to_json(self) -> str:
        """The whole record."""
        numbers = {
            "format": FORMAT, "n": self.n, "clean_accuracy": self.clean_accuracy,
            "robust_accuracy": self.robust_accuracy, "threat": self.threat.numbers(),
            "findings": [asdict(finding) for finding in self.findings],
            "provenance": asdict(self.provenance),
            "attacks": {name: v.numbers() for name, v in self.attacks.items()},
            "index": self.index.tolist(), "y": self.y.tolist(), "clean": self.clean.int().tolist(),
        }  # fmt: skip
        return json.dumps(numbers, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`."""
        numbers = json.loads(text)
        if numbers.get("format") not in (1, FORMAT):
            raise ValueError(f"not a record of an evaluation, of format 1 or {FORMAT}")
        return cls(
            threat=Threat(**numbers["threat"]), index=torch.tensor(numbers["index"]),
            y=torch.tensor(numbers["y"]), clean=torch.tensor(numbers["clean"]).bool(),
            attacks={name: Verdicts.of(v) for name, v in numbers["attacks"].items()},
            findings=tuple(Finding(**finding) for finding in numbers["findings"]),
            provenance=Provenance(**numbers["provenance"]),
        )  # fmt: skip
