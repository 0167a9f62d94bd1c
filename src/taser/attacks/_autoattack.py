"""AutoAttack (Croce & Hein, 2020), by the package pyautoattack; and attacks by name."""

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from taser._names import unknown
from taser._runtime import rows_like
from taser.stein._model_state import eval_mode, outputs_of, restored_rng

from ._attack import Attack, AttackWarning, Model
from ._pgd import RestartedPGD
from ._random_models import Averaged, Votes
from ._simple import Cascade
from ._spsa import SPSA
from ._threat import Rng, Threat, inside


class _Warns(logging.Handler):
    """Turns what the package logs into AttackWarnings."""

    def emit(self, record: logging.LogRecord) -> None:
        warnings.warn(f"AutoAttack says: {record.getMessage()}", AttackWarning, stacklevel=2)


LOGGER = logging.getLogger(__name__)
LOGGER.addHandler(_Warns(logging.WARNING))
LOGGER.propagate = False


class _AllBroken(Exception):
    """No example is left to attack; ends the run of an attack."""


RowModel = Callable[[Tensor, Tensor], Tensor]


class EarlyExit:
    """A model that does not compute an example again once it is broken.

    The package's attacks call it instead of the model. It keeps the first wrong point inside the
    ball (`found`; x if there is none), returns made-up logits for that row afterwards, and ends the
    run when no example is left. For the clean examples it repeats its first logits, also for a
    randomised model. ranking: (B, C), the smallest clean logit first.
    """

    def __init__(
        self, model: RowModel, x: Tensor, y: Tensor, threat: Threat, votes: RowModel | None = None
    ) -> None:
        with torch.no_grad():
            self._clean = model(x, torch.arange(len(x), device=x.device))
        self.model, self.threat, self.x, self.y, self.votes = model, threat, x, y, votes
        self.ranking = self._clean.sort(dim=1)[1]
        self.broken = self._clean.argmax(1) != y
        self.found = x.clone()
        classes = self._clean.shape[1]
        self._made_up = F.one_hot((y + 1) % classes, classes).to(self._clean.dtype)
        self._rows = self.robust

    robust = property(lambda self: (~self.broken).nonzero()[:, 0])

    def run(self, attack: Callable[[Tensor, Tensor], object]) -> None:
        """Call attack(x, y) on the robust examples; it has to use this object as its model."""
        self._rows = self.robust
        if len(self._rows):
            with suppress(_AllBroken):
                attack(self.x[self._rows], self.y[self._rows])

    def __call__(self, x_adv: Tensor) -> Tensor:
        """Logits, (R, C), for points of the rows that the run began with, (R, *)."""
        if not x_adv.requires_grad and torch.equal(x_adv, self.x[self._rows]):
            return self._clean[self._rows]
        active = (~self.broken[self._rows]).nonzero()[:, 0]
        everyone = len(active) == len(x_adv)
        rows, points = self._rows[active], x_adv if everyone else x_adv[active]
        logits = self.model(points, rows)
        wrong = logits.detach().argmax(1) != self.y[rows]
        if self.votes is not None and wrong.any():  # a randomised model: one average is not enough
            at = wrong.nonzero()[:, 0]
            wrong[at] = self.votes(points[at], rows[at]).argmax(1) != self.y[rows[at]]
        if wrong.any():
            keep = wrong & inside(self.threat, points.detach(), self.x[rows])
            self.found[rows[keep]] = points.detach()[keep]
            self.broken[rows[keep]] = True
            if bool(self.broken[self._rows].all()):
                raise _AllBroken
        return logits if everyone else self._made_up[self._rows].index_put((active,), logits)


Part = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square"]
PASSES = {"apgd-ce": 300, "apgd-dlr": 300, "apgd-t": 2700, "fab-t": 3600, "square": 5000}
WIDTH = 4.0  # in ε, of the artificial [0, 1] box for threats with per-feature structure
TARGETS = 9  # classes that targeted attacks try, as in the standard version


@dataclass(frozen=True)
class AutoAttackPart:
    """One attack of AutoAttack, with the standard version's settings.

    Broken examples are dropped; random draws are those of the package with this seed.
    """

    part: Part
    threat: Threat = field(default_factory=Threat)
    seed: int = 0

    passes = property(lambda self: PASSES[self.part])
    name = property(lambda self: self.part)

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        del generator  # the package seeds itself
        threat, x = self.threat, x.detach()
        low = float(x.min()) - threat.epsilon if threat.low is None else threat.low
        high = float(x.max()) + threat.epsilon if threat.high is None else threat.high
        unit, width = (low, high) == (0.0, 1.0), WIDTH * threat.epsilon
        if not threat.has_structure:
            width = high - low

        def back(u: Tensor, rows: Tensor) -> Tensor:
            if not threat.has_structure:
                return u if unit else u * width + low
            moved = threat.into_box(x[rows] + (u - 0.5) * width * threat.feature_unit(x))
            # Valid points, with the gradient at the unrounded ones.
            return moved + (threat.valid(moved, x[rows]) - moved).detach()

        def logits(u: Tensor, rows: Tensor, model: Model = model) -> Tensor:
            points = back(u.to(x.dtype), rows).clone()  # a first layer may work in place
            return outputs_of(model, points).float()

        votes = None
        if isinstance(model, Averaged):
            votes = partial(logits, model=Votes(model.model, model.draws))

        with eval_mode(model, freeze=True), restored_rng(x.device):
            # The package needs float32 u in [0, 1]: (x − low)/(high − low), or, if features differ,
            # 0.5 + the change in units of the norm.
            u = 0 * x + 0.5
            if not threat.has_structure:
                u = x if unit else (x - low) / width
            scaled = Threat(threat.norm, threat.epsilon / width)
            target = EarlyExit(logits, u.float().contiguous(), y, scaled, votes)
            package = self._package(target, x)
            torch.manual_seed(self.seed)
            self._run(package, target)
        # Scaling to [0, 1] and back rounds: in a wide box by more than `inside` allows.
        x_adv = threat.project(back(target.found.to(x), torch.arange(len(x), device=x.device)), x)
        return torch.where(rows_like(target.broken, x), x_adv, x)

    def _package(self, target: EarlyExit, x: Tensor) -> Any:
        from pyautoattack import AutoAttack

        norm = {"linf": "Linf", "l2": "L2", "l1": "L1"}[self.threat.norm]
        package = AutoAttack(
            target, eps=target.threat.epsilon, norm=norm,
            seed=self.seed, device=x.device, version="standard",
        )  # fmt: skip
        for attack in (package.apgd, package.apgd_targeted):
            attack.init_hyperparam(x)
            attack.logger = LOGGER
        return package

    def _run(self, package: Any, target: EarlyExit) -> None:
        # Targets, the most likely wrong class first: 2 means the second largest logit.
        ranks = range(2, min(TARGETS, target.ranking.shape[1] - 1) + 2)
        if self.part == "apgd-t":
            for rank in ranks:
                package.apgd_targeted.y_target = target.ranking[target.robust, -rank]
                target.run(package.apgd_targeted.attack_single_run)
        elif self.part == "fab-t":
            for rank in ranks:
                package.fab.target_class = rank
                with torch.no_grad():
                    target.run(partial(package.fab.attack_single_run, is_targeted=True))
        elif self.part == "square":
            target.run(partial(_square, package.square, target))
        else:
            package.apgd.loss = self.part.removeprefix("apgd-")
            target.run(package.apgd.attack_single_run)


@torch.no_grad()
def _square(square: Any, target: EarlyExit, x: Tensor, y: Tensor) -> None:
    shape = x.shape[1:] if x.ndim == 4 else (1, 1, x[0].numel())
    square.predict = lambda x_adv: target.model(x_adv.reshape(-1, *x.shape[1:]), target.robust)
    square.init_hyperparam(x.reshape(-1, *shape))
    _, x_adv = square.attack_single_run(x.reshape(-1, *shape), y)
    target(x_adv.reshape(x.shape))  # broken examples are recorded already


def without_square(threat: Threat, images: bool) -> str:
    """Why Square cannot be run, or an empty string."""
    if threat.has_structure:
        return "Square takes one ε and one range for all features, and here they differ"
    return "" if images or threat.norm == "linf" else f"Square in {threat.norm} is for images"


def autoattack(
    threat: Threat | None = None, *, classes: int = 10, images: bool = True, seed: int = 0
) -> Cascade:
    """The standard version: APGD-CE, targeted APGD-DLR, targeted FAB, Square.

    Targeted DLR needs four classes, and Square in ℓ2 needs images; otherwise `note` says what runs
    instead. Where features differ, the search is for the change in units of the norm.
    """
    threat = threat or Threat()
    if classes < 2:
        raise ValueError(f"AutoAttack needs at least two classes; got {classes}")
    notes = []
    dlr: Attack = AutoAttackPart("apgd-t", threat, seed)
    if classes == 3:
        dlr = AutoAttackPart("apgd-dlr", threat, seed)
        notes.append("untargeted APGD-DLR was run in place of APGD-T, which needs four classes")
    elif classes == 2:
        dlr = RestartedPGD(threat, steps=100, name="pgd-margin")
        notes.append("PGD on the margin was run in place of APGD-T, which needs four classes")
    last: Attack = AutoAttackPart("square", threat, seed)
    if reason := without_square(threat, images):
        last = SPSA.strong(threat)
        notes.append(f"strong SPSA, also without gradients, was run in place of Square: {reason}")
    ce, fab = AutoAttackPart("apgd-ce", threat, seed), AutoAttackPart("fab-t", threat, seed)
    return Cascade("autoattack", (ce, dlr, fab, last), note="; ".join(notes))


def named_attack(name: str, threat: Threat, *, classes: int, images: bool, seed: int) -> Attack:
    """The attack with this name in recipes; images: whether inputs are (C, H, W)."""
    from . import ATTACK_NAMES, ATTACKS

    if name in ATTACKS:
        return ATTACKS[name](threat)
    if name == "autoattack":
        return autoattack(threat, classes=classes, images=images, seed=seed)
    if name not in get_args(Part):
        raise unknown("attack", name, ATTACK_NAMES)
    if (name == "apgd-t" and classes < 4) or (name == "apgd-dlr" and classes < 3):
        raise ValueError(f"{name} needs more than {classes} classes: take 'autoattack' or 'pgd'")
    if name == "square" and (reason := without_square(threat, images)):
        raise ValueError(f"{reason}: take 'autoattack' or 'spsa'")
    return AutoAttackPart(name, threat, seed)  # type: ignore[arg-type]
