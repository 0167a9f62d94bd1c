"""The audit's answers together, and the verdict."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from taser.attacks import Threat

from ..findings import Finding
from .check import Check

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
