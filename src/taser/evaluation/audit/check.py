"""One question that a claim of robustness has to survive, and its answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from ..statistics import chance_of

ALLOWED = 0.02
"""The share of examples that a weaker attack may find by luck: searches stop before their end."""

SIGNIFICANCE = 0.01
"""How improbable a count has to be, were the true share no more than allowed, to fail a check."""


@dataclass(frozen=True)
class Check:
    """A question with its answer.

    passed: None where the check was skipped, and `figure` then says why; figure: what was
    measured, to be read; explanation: what was asked, and why that matters; numbers: the figure,
    to be computed with.
    """

    name: str
    passed: bool | None
    figure: str
    explanation: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> Literal["passed", "failed", "skipped"]:
        """In one word."""
        if self.passed is None:
            return "skipped"
        return "passed" if self.passed else "failed"

    @classmethod
    def skipped(cls, name: str, reason: str, explanation: str) -> Self:
        """A check that could not be made: neither for nor against the model."""
        return cls(name, None, reason, explanation)

    @classmethod
    def of_count(
        cls, name: str, count: int, n: int, what: str, explanation: str, *, allowed: float = ALLOWED
    ) -> Self:
        """Failed if `count` of n examples is more than the allowed share beyond sampling error.

        That is an exact one-sided binomial test: for n = 100 and 2 % it takes 7, for 1000 it takes
        32.
        """
        p = chance_of(count, n, allowed)
        figure = f"{count} of {n} ({100 * count / n:.1f} %) {what}"
        numbers = {"count": count, "n": n, "allowed": allowed, "p": p}
        return cls(name, p >= SIGNIFICANCE, figure, explanation, numbers)

    @classmethod
    def of_difference(
        cls, name: str, more: int, less: int, n: int, what: str, explanation: str
    ) -> Self:
        """Failed if `more` of n exceeds `less` by the allowed share, and not by chance.

        For two attacks of equal strength, each of which breaks some that the other does not: an
        exact sign test of those (McNemar's).
        """
        p = chance_of(more, more + less, 0.5)
        passed = p >= SIGNIFICANCE or more - less <= ALLOWED * n
        figure = f"{more} of {n} ({100 * more / n:.1f} %) {what.format(less)}"
        numbers = {"count": more, "other": less, "n": n, "allowed": ALLOWED, "p": p}
        return cls(name, passed, figure, explanation, numbers)
