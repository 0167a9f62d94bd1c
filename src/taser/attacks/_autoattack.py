"""AutoAttack (Croce & Hein, 2020), by the package pyautoattack."""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from taser._tensors import rows_like
from taser.stein._model_state import eval_mode, restored_rng

from ._attack import Attack, AttackWarning, Cascade, Model, UnitBox
from ._pgd import RestartedPGD
from ._spsa import SPSA
from ._threat import Threat, inside

LOGGER = logging.getLogger("auto-attack")


class _WarningCollector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def log_as_warnings() -> Iterator[None]:
    """What the package logs as a warning becomes an AttackWarning, each message once."""
    collector = _WarningCollector()
    propagate, LOGGER.propagate = LOGGER.propagate, False
    LOGGER.addHandler(collector)
    try:
        yield
    finally:
        LOGGER.removeHandler(collector)
        LOGGER.propagate = propagate
    for message in dict.fromkeys(collector.messages):
        warnings.warn(f"AutoAttack says: {message}", AttackWarning, stacklevel=3)


class _AllBroken(Exception):
    """Nothing is left to attack; ends a run from inside."""


class EarlyExit:
    """A model that stops computing an example as soon as it got it wrong.

    The package's attacks with a fixed number of steps run all of their examples to the end. They
    call this object instead of the model: it keeps the first wrongly classified point inside the
    ball, returns made-up logits for that row from then on (wrong, without gradient), and ends the
    run when no example is left. Examples do not influence one another inside an attack, so the
    others are attacked as they would have been. For the clean examples, without a gradient, it
    repeats its first logits, also for a model that draws.

    x: (B, *); y: (B,). ranking: (B, C), classes by clean logit, the smallest first; found: (B, *),
    the wrongly classified points, x itself where there is none; broken: (B,).
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor, threat: Threat) -> None:
        with torch.no_grad():
            logits = model(x)
        self.model, self.threat = model, threat
        self.x, self.y = x, y
        self.ranking = logits.sort(dim=1)[1]
        self._clean = logits
        self.broken = logits.argmax(1) != y
        self.found = x.clone()
        self._made_up = F.one_hot((y + 1) % logits.shape[1], logits.shape[1]).to(logits.dtype)
        self._rows = self.unbroken

    @property
    def unbroken(self) -> Tensor:
        """The numbers of the examples that are not broken."""
        return (~self.broken).nonzero()[:, 0]

    def run(self, attack: Callable[[Tensor, Tensor], object]) -> None:
        """attack(x, y) on the unbroken examples; it has to call this object for logits."""
        self._rows = self.unbroken
        if len(self._rows) == 0:
            return
        with suppress(_AllBroken):
            attack(self.x[self._rows], self.y[self._rows])

    def __call__(self, moved: Tensor) -> Tensor:
        """Logits, (R, C), for points of the rows that the run began with, (R, *)."""
        if not moved.requires_grad and torch.equal(moved, self.x[self._rows]):
            return self._clean[self._rows]
        active = (~self.broken[self._rows]).nonzero()[:, 0]
        rows = self._rows[active]
        points = moved if len(active) == len(moved) else moved[active]
        logits = self.model(points)
        wrong = logits.detach().argmax(1) != self.y[rows]
        if wrong.any():
            self._keep(rows[wrong], points.detach()[wrong])
        if len(active) == len(moved):
            return logits
        return self._made_up[self._rows].index_put((active,), logits)

    def _keep(self, rows: Tensor, points: Tensor) -> None:
        allowed = inside(self.threat, points, self.x[rows])
        self.found[rows[allowed]] = points[allowed]
        self.broken[rows[allowed]] = True
        if bool(self.broken[self._rows].all()):
            raise _AllBroken


Part = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square"]
NORMS = {"linf": "Linf", "l2": "L2"}
PASSES = {"apgd-ce": 300, "apgd-dlr": 300, "apgd-t": 2700, "fab-t": 3600, "square": 5000}
TARGETS = 9  # classes that targeted attacks try, as in the standard version


@dataclass(frozen=True)
class AutoAttackPart:
    """One attack of AutoAttack, with the standard version's settings.

    Broken examples leave at once, see :class:`EarlyExit`. The draws are those of the package with
    this seed, and so are the verdicts.
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
        with eval_mode(model, freeze=True), restored_rng(x.device), log_as_warnings():
            u = box.into(x.detach()).float().contiguous()
            target = EarlyExit(box.model(model, x.dtype), u, y, box.threat(self.threat))
            package = self._package(target, x)
            torch.manual_seed(self.seed)
            _RUNS[self.part](package, target)
        # Scaling to [0, 1] and back rounds: in a wide box by more than `inside` allows.
        moved = self.threat.project(box.back(target.found.to(x)), x)
        return torch.where(rows_like(target.broken, x), moved, x)

    def _package(self, target: EarlyExit, x: Tensor) -> Any:
        from pyautoattack import AutoAttack

        package = AutoAttack(
            target, eps=target.threat.epsilon, norm=NORMS[self.threat.norm], seed=self.seed,
            device=x.device, version="standard",
        )  # fmt: skip
        package.apgd.init_hyperparam(x)
        package.apgd_targeted.init_hyperparam(x)
        return package


def _apgd(package: Any, target: EarlyExit, loss: str) -> None:
    package.apgd.loss = loss
    target.run(package.apgd.attack_single_run)


def _apgd_targeted(package: Any, target: EarlyExit) -> None:
    for rank in _ranks(target):
        package.apgd_targeted.y_target = target.ranking[target.unbroken, -rank]
        target.run(package.apgd_targeted.attack_single_run)


def _fab_targeted(package: Any, target: EarlyExit) -> None:
    for rank in _ranks(target):
        package.fab.target_class = rank
        with torch.no_grad():
            target.run(functools.partial(package.fab.attack_single_run, is_targeted=True))


def _square(package: Any, target: EarlyExit) -> None:
    shape = target.x.shape[1:] if target.x.ndim == 4 else (1, 1, target.x[0].numel())

    def run(x: Tensor, y: Tensor) -> None:
        package.square.predict = lambda moved: target.model(moved.reshape(-1, *target.x.shape[1:]))
        package.square.init_hyperparam(x.reshape(-1, *shape))
        with torch.no_grad():
            _, moved = package.square.attack_single_run(x.reshape(-1, *shape), y)
            target(moved.reshape(x.shape))  # broken examples left it already

    target.run(run)


_RUNS: dict[Part, Callable[[Any, EarlyExit], None]] = {
    "apgd-ce": functools.partial(_apgd, loss="ce"),
    "apgd-dlr": functools.partial(_apgd, loss="dlr"),
    "apgd-t": _apgd_targeted,
    "fab-t": _fab_targeted,
    "square": _square,
}


def _ranks(target: EarlyExit) -> range:
    """Targets from the most likely wrong class on: 2 means the second largest logit."""
    return range(2, min(TARGETS, target.ranking.shape[1] - 1) + 2)


def autoattack(
    threat: Threat | None = None, *, classes: int = 10, images: bool = True, seed: int = 0
) -> Cascade:
    """The standard version: APGD-CE, targeted APGD-DLR, targeted FAB, Square.

    Targeted DLR needs four classes and Square with ℓ2 needs images: where they cannot be had,
    others take their place, and the cascade's note says which.
    """
    threat = threat or Threat()
    if classes < 2:
        raise ValueError(f"AutoAttack needs at least two classes; got {classes}")
    notes = []
    dlr: Attack = AutoAttackPart("apgd-t", threat, seed)
    if classes == 3:
        dlr = AutoAttackPart("apgd-dlr", threat, seed)
        notes.append("targeted DLR needs four classes: untargeted APGD-DLR was run instead")
    elif classes == 2:
        dlr = RestartedPGD(threat, steps=100, name="pgd-margin")
        notes.append("DLR needs three classes: PGD on the margin was run instead of APGD-T")
    last: Attack = AutoAttackPart("square", threat, seed)
    if not images and threat.norm == "l2":
        last = SPSA.strong(threat)
        notes.append("Square with ℓ2 needs images: strong SPSA was run instead")
    ce, fab = AutoAttackPart("apgd-ce", threat, seed), AutoAttackPart("fab-t", threat, seed)
    stages = (ce, dlr, fab, last)
    return Cascade("autoattack", stages, note="; ".join(notes))


def check_with_package(model: Model, x: Tensor, y: Tensor) -> None:
    """The package's own checks of a model, as :class:`AttackWarning`s.

    Are its outputs random, probabilities, or found by an optimisation of its own?
    """
    from pyautoattack import checks

    def copied(x: Tensor) -> Tensor:
        return model(x.clone())  # which may work in place

    with eval_mode(model, freeze=True), restored_rng(x.device), log_as_warnings(), torch.no_grad():
        checks.check_randomized(copied, x, y, logger=LOGGER)
        checks.check_range_output(copied, x, logger=LOGGER)
        checks.funcs.update(dict.fromkeys(checks.funcs, 0))  # it keeps counts of earlier models
        checks.check_dynamic(copied, x, logger=LOGGER)
