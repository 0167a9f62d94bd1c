"""The model under audit, and what gradient attacks leave of it: each is run once, when asked."""

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser._progress import Progress
from taser.attacks import (
    Attack,
    AttackLoss,
    AutoAttackPart,
    Model,
    RestartedPGD,
    Threat,
    cross_entropy,
    margin,
)
from taser.attacks._attack import UnitBox
from taser.models import MLP, SmallCNN
from taser.probes import Margin
from taser.stein._model_state import restored_rng

from ._attack_loop import Trial
from ._record import Finding

BATCH = 128


def undefended(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    epochs: int = 5,
    width: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """A small network trained on x, (N, *), and y, (N,), with cross-entropy and nothing else.

    A convolutional one for images, a perceptron for vectors; in evaluation mode.
    """
    shape = tuple(x.shape[1:])
    with restored_rng(x.device):
        torch.manual_seed(seed)
        network: nn.Module = (
            SmallCNN(shape, classes, width) if x.ndim == 4 else MLP(shape, classes, 8 * width)
        )
        network = network.to(x.device).train()
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        for epoch in range(epochs):
            if progress:
                progress(epoch, epochs, "training a surrogate")
            for rows in torch.randperm(len(x)).to(x.device).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(network(x[rows]), y[rows]).backward()
                optimiser.step()
    return network.eval()


@dataclass(frozen=True)
class Budgeted(AutoAttackPart):
    """Square with `budget` queries instead of 5000, targeted APGD with as many steps, not 100."""

    budget: int = 100

    def _package(self, sieve: Any, x: Tensor) -> Any:
        package = super()._package(sieve, x)
        package.square.n_queries = self.budget
        targeted = package.apgd_targeted
        targeted.n_iter = self.budget
        # The steps at which its step size is judged: the package's shares of all steps.
        targeted.n_iter_2 = max(int(0.22 * self.budget), 1)
        targeted.n_iter_min = max(int(0.06 * self.budget), 1)
        targeted.size_decr = max(int(0.03 * self.budget), 1)
        return package


LOSSES: dict[str, AttackLoss] = {
    "cross-entropy": cross_entropy,
    "margin probe": Margin(),
    "margin": margin,
}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the threat's ε, to see what a larger ball does
LONGER = 4  # times as many steps, to see whether that helps


@dataclass(frozen=True, eq=False)
class AuditTarget:
    """A model with n examples that it gets right, in a trial of its own.

    Who "stands" is a mask, (n,): the examples that attacks have not broken. An attack is tried only
    on those that another left standing, which is all that a comparison of the two needs. Every
    attack has its own name, by which the trial seeds it and keeps what it did.
    """

    trial: Trial
    classes: int
    threat: Threat
    surrogate: Model | None
    steps: int
    restarts: int
    queries: int
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """How many examples are audited."""
        return len(self.trial.y)

    @cached_property
    def everyone(self) -> Tensor:
        """All stand before any attack."""
        return torch.ones(self.n, dtype=torch.bool)

    def after(self, attack: Attack, standing: Tensor) -> Tensor:
        """Who of `standing` still stands after an attack."""
        if not bool(standing.any()):  # nobody is left, and networks do not like empty batches
            return standing
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            verdicts, _, said = self.trial.run(attack, standing, lambda *_: None)
        said += [Finding(attack.name, str(warning.message)) for warning in caught]
        for finding in said:
            self.findings.setdefault(finding.name, finding)  # every batch says much the same
        return verdicts.standing

    def pgd(self, loss: str, **options: Any) -> RestartedPGD:
        """PGD as the claim is tried with; other options are those of :class:`RestartedPGD`."""
        settings = {"steps": self.steps, "restarts": self.restarts, "name": f"pgd {loss}"}
        return RestartedPGD(**{"threat": self.threat, "loss": LOSSES[loss], **settings, **options})

    def after_pgd(self, name: str, standing: Tensor, **options: Any) -> Tensor:
        """Who of `standing` still stands after PGD on every loss, one after the other."""
        for loss in LOSSES:
            standing = self.after(self.pgd(loss, name=f"{name} {loss}", **options), standing)
        return standing

    @cached_property
    def after_cross_entropy(self) -> Tensor:
        """PGD on cross-entropy alone, as claims are usually made."""
        return self.after(self.pgd("cross-entropy"), self.everyone)

    @cached_property
    def after_probe(self) -> Tensor:
        """The same, and PGD on the smooth margin, which the penalty is about."""
        return self.after(self.pgd("margin probe"), self.after_cross_entropy)

    @cached_property
    def after_losses(self) -> Tensor:
        """The same, and PGD on the margin itself: the claim, well made."""
        return self.after(self.pgd("margin"), self.after_probe)

    @cached_property
    def after_longer(self) -> Tensor:
        """All again, with more steps from one more start, on what they left."""
        return self.after_pgd("longer", self.after_losses, steps=LONGER * self.steps, restarts=1)

    @cached_property
    def after_restarts(self) -> Tensor:
        """All again, from as many new random points, on what they left."""
        return self.after_pgd("restarted", self.after_losses)

    @cached_property
    def after_gradients(self) -> Tensor:
        """Who stands after every gradient attack: what attacks without gradients are held against.

        The last one tries each wrong class in turn, which finds a few that no other finds.
        """
        standing = self.after_longer & self.after_restarts
        if self.classes < 4:  # that many it needs
            return standing
        targeted = Budgeted("apgd-t", self.threat, self.trial.seed, budget=self.steps)
        return self.after(targeted, standing)

    @cached_property
    def by_epsilon(self) -> dict[float, Tensor]:
        """Who stands after PGD on every loss as ε grows, until the ball holds the whole box."""
        threat = self.threat
        width = UnitBox.around(threat, self.trial.x).width
        whole = width if threat.norm == "linf" else width * sqrt(self.trial.x[0].numel())
        radii = [*(f * threat.epsilon for f in FACTORS if f * threat.epsilon < whole), whole]
        others = [replace(threat, epsilon=radius) for radius in radii if radius != threat.epsilon]
        after = {
            t.epsilon: self.after_pgd(f"ε={t.epsilon:g}", self.everyone, threat=t) for t in others
        }
        return dict(sorted({**after, threat.epsilon: self.after_losses}.items()))
