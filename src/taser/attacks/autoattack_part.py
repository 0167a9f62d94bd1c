"""The attacks that AutoAttack is made of, by the package pyautoattack."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from taser.shapes import rows_like
from taser.stein.guards import untouched_randomness

from .package_log import log_as_warnings
from .protocol import Model
from .quiet import quiet
from .sieve import Sieve
from .threat import Threat
from .unit_box import UnitBox

Part = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square"]
NORMS = {"linf": "Linf", "l2": "L2"}
PASSES = {"apgd-ce": 300, "apgd-dlr": 300, "apgd-t": 2700, "fab-t": 3600, "square": 5000}
TARGETS = 9  # classes that targeted attacks try, as in the standard version


@dataclass(frozen=True)
class AutoAttackPart:
    """One attack of AutoAttack, with the standard version's settings.

    Examples leave it at once when they break, by a :class:`Sieve`. The draws are those of the
    package with this seed, so the verdicts are too.
    """

    part: Part
    threat: Threat = field(default_factory=Threat)
    seed: int = 0

    @property
    def name(self) -> str:
        """As the package calls it."""
        return self.part

    @property
    def passes(self) -> int:
        """Forward passes that an example costs at most; a backward pass counts two."""
        return PASSES[self.part]

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 — the package seeds itself
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        box = UnitBox.around(self.threat, x)
        with quiet(model), untouched_randomness(x.device), log_as_warnings():
            u = box.into(x.detach()).float().contiguous()
            sieve = Sieve(box.model(model, x.dtype), u, y, box.threat(self.threat))
            package = self._package(sieve, x)
            torch.manual_seed(self.seed)
            _RUNS[self.part](package, sieve)
        # The way into [0, 1] and back rounds: in a wide box by more than the ball forgives.
        moved = self.threat.project(box.back(sieve.found.to(x)), x)
        return torch.where(rows_like(sieve.broken, x), moved, x)

    def _package(self, sieve: Sieve, x: Tensor) -> Any:
        from pyautoattack import AutoAttack

        package = AutoAttack(
            sieve, eps=sieve.threat.epsilon, norm=NORMS[self.threat.norm], seed=self.seed,
            device=x.device, version="standard",
        )  # fmt: skip
        package.apgd.init_hyperparam(x)
        package.apgd_targeted.init_hyperparam(x)
        return package


def _apgd(package: Any, sieve: Sieve, loss: str) -> None:
    package.apgd.loss = loss
    sieve.run(package.apgd.attack_single_run)


def _apgd_targeted(package: Any, sieve: Sieve) -> None:
    for rank in _ranks(sieve):
        package.apgd_targeted.y_target = sieve.ranking[sieve.standing, -rank]
        sieve.run(package.apgd_targeted.attack_single_run)


def _fab_targeted(package: Any, sieve: Sieve) -> None:
    for rank in _ranks(sieve):
        package.fab.target_class = rank
        with torch.no_grad():
            sieve.run(functools.partial(package.fab.attack_single_run, is_targeted=True))


def _square(package: Any, sieve: Sieve) -> None:
    shape = sieve.x.shape[1:] if sieve.x.ndim == 4 else (1, 1, sieve.x[0].numel())

    def run(x: Tensor, y: Tensor) -> None:
        package.square.predict = lambda moved: sieve.model(moved.reshape(-1, *sieve.x.shape[1:]))
        package.square.init_hyperparam(x.reshape(-1, *shape))
        with torch.no_grad():
            _, moved = package.square.attack_single_run(x.reshape(-1, *shape), y)
            sieve(moved.reshape(x.shape))  # it drops broken examples by itself: ask for the end

    sieve.run(run)


_RUNS: dict[Part, Callable[[Any, Sieve], None]] = {
    "apgd-ce": functools.partial(_apgd, loss="ce"),
    "apgd-dlr": functools.partial(_apgd, loss="dlr"),
    "apgd-t": _apgd_targeted,
    "fab-t": _fab_targeted,
    "square": _square,
}


def _ranks(sieve: Sieve) -> range:
    """Targets from the most likely wrong class on: 2 stands for the second largest logit."""
    return range(2, min(TARGETS, sieve.ranking.shape[1] - 1) + 2)
