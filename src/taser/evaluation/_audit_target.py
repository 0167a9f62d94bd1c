"""The model under audit, with the cached results of the gradient attacks on it."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from taser._files import Progress
from taser.attacks import Attack, AutoAttackPart, RestartedPGD, Threat
from taser.attacks._attack import AttackLoss, check_positive, cross_entropy, margin
from taser.attacks._autoattack import TARGETS
from taser.probes import Margin

from ._attack_loop import AttackLoop, passes_of
from ._record import Finding

LOSSES: dict[str, AttackLoss] = {
    "cross-entropy": cross_entropy, "margin probe": Margin(), "margin": margin,
}  # fmt: skip
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # multiples of the threat's ε
LONGER = 4  # times as many steps, to see whether PGD has converged


@dataclass(eq=False)
class AuditTarget:
    """A model, n examples that it gets right, and the cached results of attacks on them.

    `after_…`: (n,) bool, those still right. An attack's own name seeds it and its stored batches.
    robust: (n,) bool, right after every attack within the threat so far; passes: forward passes
    done of the `planned` ones, if every example takes all of them.
    """

    loop: AttackLoop
    classes: int
    threat: Threat
    surrogate: Any  # a model, in a rehearsal perhaps a function that trains one, or None
    steps: int
    restarts: int
    queries: int
    progress: Progress | None = None
    planned: int = 1
    passes: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    label: str = "audit"

    def __post_init__(self) -> None:
        self.robust = self.all_examples

    n = property(lambda self: len(self.loop.y))
    all_examples = property(lambda self: torch.ones(self.n, dtype=torch.bool))

    def after(self, attack: Attack, right: Tensor) -> Tensor:
        """Run an attack on the examples `right`, (n,): those that are still right."""
        cost = passes_of(attack) * self.n

        def report(step: int, total: int, label: str) -> None:
            if self.progress:
                done = self.passes + cost * step // max(total, 1)
                self.progress(done, self.planned, f"{self.label}: {label}")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            verdicts, _, findings = self.loop.run(attack, right, progress=report)
        self.passes += cost
        if attack.threat.epsilon <= self.threat.epsilon:
            self.robust = self.robust & ~(right & ~verdicts.correct)
        findings += [Finding(attack.name, str(warning.message)) for warning in caught]
        for finding in findings:
            self.findings.setdefault(finding.name, finding)  # one for all batches
        return verdicts.correct

    def after_pgd(
        self, name: str, right: Tensor, losses: Iterable[str] = LOSSES, **options: Any
    ) -> Tensor:
        """After PGD on each loss in turn; options: those of :class:`RestartedPGD`."""
        budget = dict[str, Any](threat=self.threat, steps=self.steps, restarts=self.restarts)
        for loss in losses:
            attack = RestartedPGD(name=f"{name} {loss}", loss=LOSSES[loss], **(budget | options))
            right = self.after(attack, right)
        return right

    @cached_property
    def after_cross_entropy(self) -> Tensor:
        """After PGD on cross-entropy, the usual evaluation."""
        return self.after_pgd("pgd", self.all_examples, ["cross-entropy"])

    @cached_property
    def after_probe(self) -> Tensor:
        """And after PGD on the smooth margin, which TASER's penalty is about."""
        return self.after_pgd("pgd", self.after_cross_entropy, ["margin probe"])

    @cached_property
    def after_losses(self) -> Tensor:
        """And after PGD on the margin."""
        return self.after_pgd("pgd", self.after_probe, ["margin"])

    @cached_property
    def after_longer(self) -> Tensor:
        """And after all three with more steps from one more start."""
        return self.after_pgd("longer", self.after_losses, steps=LONGER * self.steps, restarts=1)

    @cached_property
    def after_restarts(self) -> Tensor:
        """After all three from as many new random starts, on what `after_losses` left."""
        return self.after_pgd("restarted", self.after_losses)

    @cached_property
    def after_gradients(self) -> Tensor:
        """After PGD of all kinds, and APGD on each wrong class (which needs four classes)."""
        right = self.after_longer & self.after_restarts
        if self.classes < 4:
            return right
        return self.after(Budgeted("apgd-t", self.threat, self.loop.seed, budget=self.steps), right)

    @cached_property
    def after_epsilon(self) -> dict[float, Tensor]:
        """After PGD on every loss, by ε: multiples of the threat's, and the whole box."""
        low, high = self.threat.box_around(self.loop.x)
        box = (high - low) * (sqrt(self.loop.x[0].numel()) if self.threat.norm == "l2" else 1)
        found = {self.threat.epsilon: self.after_losses}
        for epsilon in (*(e for f in FACTORS if (e := f * self.threat.epsilon) < box), box):
            if epsilon not in found:
                wider = replace(self.threat, epsilon=epsilon)
                found[epsilon] = self.after_pgd(f"ε={epsilon:g}", self.all_examples, threat=wider)
        return dict(sorted(found.items()))


class Rehearsal(AuditTarget):
    """Runs no attack: it counts their passes, and finds options that an attack would refuse."""

    def after(self, attack: Attack, right: Tensor) -> Tensor:
        """All that were right."""
        self.passes += passes_of(attack) * self.n
        return right


@dataclass(frozen=True)
class Budgeted(AutoAttackPart):
    """Square with `budget` queries, or targeted APGD with `budget` steps."""

    budget: int = 100
    passes = property(lambda self: self.budget * (1 if self.part == "square" else 3 * TARGETS))

    def __post_init__(self) -> None:
        check_positive(self, "budget")

    def _package(self, target: Any, x: Tensor) -> Any:
        package = super()._package(target, x)
        package.square.n_queries = package.apgd_targeted.n_iter = self.budget
        # The steps at which its step size is halved: the package's shares of all steps.
        for name, share in (("n_iter_2", 0.22), ("n_iter_min", 0.06), ("size_decr", 0.03)):
            setattr(package.apgd_targeted, name, max(int(share * self.budget), 1))
        return package
