"""The audit: signs that gradient attacks overestimate a model's robustness."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser._files import Progress
from taser.attacks import Model, Threat
from taser.models import MLP, SmallCNN

from ._attack_loop import AttackLoop, open_store
from ._audit_checks import CHECKS, AuditTarget, Check, Rehearsal
from ._evaluate import Curve
from ._model_checks import check_data, check_model, fix_buffers, oddities
from ._record import Finding, Provenance, described, device_of, seeded
from ._statistics import Interval, accuracy_interval

MIN_CORRECT = 30


class TooFewCorrect(ValueError):
    """The model gets too few of the examples right for an audit; give more examples."""

    def __init__(self, correct: int | str, given: int) -> None:
        why = "with fewer, chance alone could explain what a check finds"
        wanted = f"at least {MIN_CORRECT} examples that the model gets right ({why})"
        super().__init__(f"an audit takes {wanted}; it got {correct} of {given}. Give it more")


@dataclass(frozen=True, repr=False)
class Audit:
    """Results of all checks.

    n: number of the `given` examples that the model gets right; curve: their accuracy against ε;
    robust: number that is right under every attack; settings: seeds, hashes, versions and budgets.
    """

    checks: tuple[Check, ...]
    curve: Curve
    threat: Threat
    n: int
    robust: int
    given: int
    findings: tuple[Finding, ...]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        failed = ", ".join(check.name for check in self.failed) or "none"
        found = ", ".join(finding.name for finding in self.findings) or "none"
        where = f"{100 * self.accuracy.value:.1f} % robust at {self.threat}, n={self.given}"
        checks = f"{len(self.checks)} checks, failed: {failed}"
        return f"Audit({self.verdict}, {where}; {checks}; findings: {found})"

    @property
    def accuracy(self) -> Interval:
        """Accuracy under all attacks, over all examples; an upper bound if a check failed."""
        return accuracy_interval(torch.arange(self.given) < self.robust)

    @property
    def verdict(self) -> Literal["trust", "do not trust"]:
        """Whether accuracy under gradient attacks can be trusted: only if no check failed."""
        return "do not trust" if self.failed else "trust"

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def skipped(self) -> tuple[Check, ...]:
        """The checks that were skipped."""
        return tuple(check for check in self.checks if check.passed is None)

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        checks = [{"status": check.status, **asdict(check)} for check in self.checks]
        figures = {"accuracy": asdict(self.accuracy), "clean_accuracy": self.n / self.given}
        pairs = zip(self.curve.epsilons, self.curve.accuracies, strict=True)
        curve = [{"epsilon": epsilon, "accuracy": accuracy} for epsilon, accuracy in pairs]
        whole = asdict(self) | {"checks": checks, "curve": curve}
        return {"format": 1, "verdict": self.verdict, **figures, **whole}


def audit(
    model: Model, x: Tensor, y: Tensor, *, threat: Threat | None = None,
    surrogate: nn.Module | Callable[[], nn.Module] | None = None, steps: int = 50,
    restarts: int = 3, queries: int = 1000, seed: int = 0, batch_size: int = 250,
    out: Path | str | None = None, progress: Progress | None = None,
) -> Audit:  # fmt: skip
    """Check a model for gradient masking (Athalye et al., 2018; Carlini et al., 2019).

    model: (B, *) → logits (B, C); x: (n, *); y: (n,). Only correct examples are attacked. threat:
    by default ℓ∞, 8/255; surrogate: an undefended model for the same task, or a function that
    trains one, called after all inputs were checked; without it the transfer check is skipped;
    steps, restarts: PGD's; it is also run with four times the steps and with twice the restarts;
    queries: per example, for each attack without gradients; out: a folder for finished batches,
    from which an audit that was killed resumes.

    A check fails if the weaker of two attacks breaks more than 2 % of the examples that the
    stronger one does not break, significantly (exact binomial test, 1 %).
    """
    threat = threat or Threat()
    if y.is_floating_point():
        ask = "compare PGD's error with SPSA's, by taser.evaluate"
        raise ValueError(f"the audit counts wrong classes, and a regression has none: {ask}")
    device = device_of(model, x)
    x, y = x.detach().to(device), y.to(device)
    findings = check_data(x, y, threat)
    model = fix_buffers(model, x)
    classes, odd = check_model(model, x, y)
    if isinstance(surrogate, nn.Module) and check_model(surrogate, x, y)[0] != classes:
        raise ValueError(f"the surrogate should have the model's {classes} classes")
    settings = {
        **asdict(Provenance.of(model, x, y, (), seed, batch_size)), "threat": threat.numbers(),
        "oddities": oddities(odd),
        "surrogate": None if surrogate is None else described(surrogate).split()[-1],
        "attacks": {"steps": steps, "restarts": restarts, "queries": queries},
    }  # fmt: skip
    store = open_store(out, settings)
    with seeded(x.device, seed):
        loop = AttackLoop.of(model, x, y, seed, batch_size, store)
        right = loop.correct(x, y)
        if (correct := int(right.sum())) < MIN_CORRECT:
            raise TooFewCorrect(correct, len(y))
        loop = replace(loop, x=x[right], y=y[right])
        rehearsal = Rehearsal(loop, classes, threat, surrogate, steps, restarts, queries)
        for check in CHECKS:
            check(rehearsal)
        if progress:
            progress(0, rehearsal.passes, f"audit: {loop.estimate(rehearsal.passes)}")
        if not (surrogate is None or isinstance(surrogate, nn.Module)):
            surrogate = surrogate()
        target = AuditTarget(
            loop, classes, threat, surrogate, steps, restarts, queries, progress, rehearsal.passes
        )
        checks: list[Check] = []
        for check in CHECKS:
            failed = [one.name for one in checks if one.passed is False]
            target.label = "audit" + f", failed so far: {', '.join(failed)}" * bool(failed)
            checks.append(check(target))
    shares = tuple(float(right.float().mean()) for right in target.after_epsilon.values())
    curve = Curve(tuple(target.after_epsilon), shares, "PGD on three losses", target.n)
    findings += [*odd, *target.findings.values()]
    robust = int(target.robust.sum())
    return Audit(tuple(checks), curve, threat, target.n, robust, len(y), tuple(findings), settings)


def undefended(
    x: Tensor, y: Tensor, classes: int, *, epochs: int = 5, width: int = 16, seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:  # fmt: skip
    """A small CNN or, for vectors, MLP trained on x, (N, *), and y, (N,), with cross-entropy."""
    shape, images = tuple(x.shape[1:]), x.ndim == 4
    with seeded(x.device, seed):
        network = SmallCNN(shape, classes, width) if images else MLP(shape, classes, 8 * width)
        network = network.to(x.device).train()
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        for epoch in range(epochs):
            if progress:
                progress(epoch, epochs, "training a surrogate")
            for rows in torch.randperm(len(x)).to(x.device).split(128):
                optimiser.zero_grad()
                F.cross_entropy(network(x[rows]), y[rows]).backward()
                optimiser.step()
    return network.eval()
