"""Whether to believe what gradient attacks say of a model."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from torch import Tensor

from taser._progress import Progress
from taser.attacks import Model, Threat

from ._attack_loop import Store, Trial
from ._audit_checks import (
    Check,
    away_from_clean,
    decision_based,
    gradient_free,
    gradients,
    growing_epsilon,
    large_epsilon,
    logits,
    longer,
    margin_probe,
    noise,
    one_step,
    repeatable,
    restarted,
    transfer,
)
from ._audit_target import AuditTarget
from ._model_checks import Differentiable, character, check_data, check_model, prepare
from ._record import Finding, Provenance, device_of, hash_of_model, seeded

Verdict = Literal["trust", "do not trust"]


@dataclass(frozen=True)
class Point:
    """Robust accuracy at one ε, over the n examples that the model gets right."""

    epsilon: float
    accuracy: float


@dataclass(frozen=True, repr=False)
class Audit:
    """What the checks said of a model.

    n: the examples audited, all of which the model gets right; asked: those it was asked about;
    curve: accuracy on the n examples as ε grows; findings: what was noticed by the way;
    settings: seeds, hashes, versions and budgets, by which the same audit can be had again.
    """

    checks: tuple[Check, ...]
    curve: tuple[Point, ...]
    threat: Threat
    n: int
    asked: int
    findings: tuple[Finding, ...]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        failed = (
            f"; failed: {', '.join(check.name for check in self.failed)}" if self.failed else ""
        )
        return (
            f"Audit({self.verdict}: {len(self.checks)} checks, {len(self.failed)} failed, "
            f"{len(self.skipped)} skipped; {self.threat}, n={self.n} of {self.asked}{failed})"
        )

    @property
    def verdict(self) -> Verdict:
        """Whether figures obtained by gradients can be believed: only if no check failed."""
        return "do not trust" if self.failed else "trust"

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that speak against it."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def skipped(self) -> tuple[Check, ...]:
        """The checks that were not made."""
        return tuple(check for check in self.checks if check.passed is None)

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        checks = [
            {"status": check.status} | {**asdict(check), "numbers": dict(check.numbers)}
            for check in self.checks
        ]
        return {"verdict": self.verdict, **asdict(self), "checks": checks}


CHECKS = (
    logits, repeatable, gradients, one_step, margin_probe, away_from_clean, longer, restarted,
    growing_epsilon, large_epsilon, noise, gradient_free, decision_based, transfer,
)  # fmt: skip
"""The questions, each a function of the suspect, in the order that they are asked."""

FEWEST = 30
"""Rightly classified examples, under which no check could fail or pass for a reason."""


class TooFewRight(ValueError):
    """The model gets too few of the examples right for an audit; more of them may do."""


def audit(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | None = None,
    surrogate: Model | None = None,
    steps: int = 50,
    restarts: int = 3,
    queries: int = 1000,
    seed: int = 0,
    batch_size: int = 250,
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """What the literature asks of a defence (Athalye et al., 2018; Carlini et al., 2019).

    model: (B, *) → logits (B, C); x: (n, *); y: (n,). Those examples are audited that the model
    gets right.

    threat
        What the claim to be audited is about; by default ℓ∞, 8/255.
    surrogate
        An undefended model of the same task; without one the transfer check is skipped.
    steps, restarts
        Of PGD; whether it has converged is judged by four times the steps and twice the starts.
    queries
        That each attack without gradients has for an example, or a little more.
    out
        A folder to keep finished batches in: killed and started again, it goes on where it was.

    A comparison fails if the attack that should be weaker breaks more than 2 % of the examples
    beyond those that the stronger one broke, and sampling error cannot explain it (exact binomial
    test, 1 %): a search that ends before it is done misses a few by luck.
    """
    threat = threat or Threat()
    device = device_of(model, x)
    x, y = x.detach().to(device), y.to(device)
    findings = check_data(x, y, threat)
    classes, odd = check_model(model, x, y)
    settings = {
        **asdict(Provenance.of(model, x, y, (), seed, batch_size)),
        "threat": asdict(threat),
        "oddities": character(odd),
        "surrogate": hash_of_model(surrogate) if surrogate else None,
        "attacks": {"steps": steps, "restarts": restarts, "queries": queries},
    }
    folder = None if out is None else Path(out)
    with seeded(x.device, seed), FileLock(folder / ".lock") if folder else nullcontext():
        quick = Differentiable(prepare(model, x, y))
        trial = Trial(model, quick, x, y, seed, batch_size, Store(folder, settings))
        right = _of_right_answers(trial)
        suspect = AuditTarget(right, classes, threat, surrogate, steps, restarts, queries)
        checks = []
        for done, ask in enumerate(CHECKS):
            if progress:
                progress(done, len(CHECKS), f"audit: {ask.__name__.replace('_', ' ')}")
            checks.append(ask(suspect))
    curve = tuple(
        Point(epsilon, float(standing.float().mean()))
        for epsilon, standing in suspect.by_epsilon.items()
    )
    findings += [*odd, *suspect.findings.values()]
    return Audit(tuple(checks), curve, threat, suspect.n, len(y), tuple(findings), settings)


def _of_right_answers(trial: Trial) -> Trial:
    """The trial of those examples alone that the model gets right."""
    right = trial.right(trial.x, trial.y)
    if int(right.sum()) < FEWEST:
        raise TooFewRight(
            f"an audit takes at least {FEWEST} examples that the model gets right; it got "
            f"{int(right.sum())} of {len(right)}. Give it more"
        )
    return replace(trial, x=trial.x[right], y=trial.y[right])
