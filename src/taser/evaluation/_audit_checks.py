"""Checks that attacks which know less find nothing that gradients missed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, Self

import torch
from torch import Tensor

from taser.attacks import (
    FGSM,
    SPSA,
    Attack,
    LastingPGD,
    RandomNoise,
    Transfer,
    cross_entropy,
    input_gradient,
)
from taser.probes import looks_like_probabilities
from taser.stein._model_state import eval_mode

from ._attack_loop import Trial
from ._audit_target import LONGER, LOSSES, AuditTarget, Budgeted
from ._ray_search import RaySearch
from ._statistics import chance_of

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


ROUNDING = 1e-3  # of the logits' spread: what the order of a batch changes in float32, and more


def logits(suspect: AuditTarget) -> Check:
    """Are the outputs logits, or already probabilities?"""
    explanation = (
        "A softmax inside the model rounds away what cross-entropy is to climb; attack the logits."
    )
    z = _outputs(suspect.trial, suspect.trial.x)
    finite = bool(torch.isfinite(z).all())
    probabilities = finite and looks_like_probabilities(z)
    what = "probabilities" if probabilities else "outputs"
    figure = f"{what} from {float(z.min()):.3g} to {float(z.max()):.3g}"
    return Check("outputs are logits", finite and not probabilities, figure, explanation)


def repeatable(suspect: AuditTarget) -> Check:
    """Does the model answer the same again, whatever company an example has in its batch?"""
    explanation = (
        "Asked again in another order it should answer the same: where outputs are random or "
        "depend on the batch, an attack has to average over that, which plain attacks do not."
    )
    first = _outputs(suspect.trial, suspect.trial.x)
    again = _outputs(suspect.trial, suspect.trial.x.flip(0)).flip(0)
    change = float((first - again).abs().max() / first.std().clamp_min(1e-12))
    figure = f"outputs change by {change:.1g} of their spread"
    return Check("outputs repeat", change <= ROUNDING, figure, explanation, {"change": change})


def gradients(suspect: AuditTarget) -> Check:
    """Is there a gradient to follow at all?"""
    explanation = (
        "Where ∇CE at the example is zero, too small for a step or not finite (saturated softmax, "
        "rounded inputs), an attack stands still, and says nothing of how robust the model is."
    )
    trial = suspect.trial
    batches = zip(trial.x.split(trial.batch_size), trial.y.split(trial.batch_size), strict=True)
    with eval_mode(trial.quick, freeze=True):
        parts = [input_gradient(trial.quick, x, y, cross_entropy) for x, y in batches]
    gradient = torch.cat(parts)
    step = suspect.threat.ascent(gradient)  # of unit length, unless the gradient is too small
    length = suspect.threat.distance(step, torch.zeros_like(step))
    usable = gradient.flatten(1).isfinite().all(1) & (length > 0.5)
    return Check.of_count(
        "gradients exist", int((~usable).sum()), suspect.n, "without a usable gradient", explanation
    )


@torch.no_grad()
def _outputs(trial: Trial, x: Tensor) -> Tensor:
    with eval_mode(trial.model, freeze=True):
        return torch.cat([trial.model(rows.clone()).float() for rows in x.split(trial.batch_size)])


OTHER_LOSS = 0.10
"""What the margin may break beyond cross-entropy: honest networks differ by some points,
hidden gradients by tens. A judgement of ours, not calibrated."""


def one_step(suspect: AuditTarget) -> Check:
    """Iterative attacks beat one step."""
    attack = FGSM(suspect.threat, name="one step")
    left = suspect.after_cross_entropy
    return Check.of_count(
        "iterative beats one-step",
        int((left & ~suspect.after(attack, left)).sum()),
        suspect.n,
        "broken by one step and not by many",
        "Many small steps search better than one large step, unless gradients mislead near the "
        "example (Athalye et al., 2018).",
    )


def longer(suspect: AuditTarget) -> Check:
    """More iterations change little."""
    return Check.of_count(
        f"{LONGER}× more iterations",
        int((suspect.after_losses & ~suspect.after_longer).sum()),
        suspect.n,
        f"more broken by {LONGER * suspect.steps} steps than by {suspect.steps}",
        "An attack that more steps would still improve has not converged, and the accuracy that it "
        "leaves is too high.",
    )


def restarted(suspect: AuditTarget) -> Check:
    """More restarts change little."""
    return Check.of_count(
        "2× more restarts",
        int((suspect.after_losses & ~suspect.after_restarts).sum()),
        suspect.n,
        f"more broken by {2 * suspect.restarts} random starts than by {suspect.restarts}",
        "Where luck with the starting point decides, the loss is too rugged for gradients to lead.",
    )


def away_from_clean(suspect: AuditTarget) -> Check:
    """An attack started away from the clean point is no better."""
    near, away = (
        suspect.after_pgd(name, suspect.everyone, random_start=random, restarts=1)
        for name, random in (("clean start", False), ("random start", True))
    )
    return Check.of_difference(
        "started away from the example",
        int((near & ~away).sum()),
        int((away & ~near).sum()),
        suspect.n,
        "broken only from a random point, {} only from the example itself",
        "Gradients that mislead only in the close vicinity of the data are a mask that training "
        "with one-step attacks often makes.",
    )


def margin_probe(suspect: AuditTarget) -> Check:
    """An adaptive attack, on the margin that TASER's penalty smooths."""
    return Check.of_count(
        "adaptive attack on the margin",
        int((suspect.after_cross_entropy & ~suspect.after_probe).sum()),
        suspect.n,
        "broken by ascent of the margin probe and not of cross-entropy",
        "A penalty on the margin could flatten the loss that is attacked and leave the decision "
        "where it was; the margin itself cannot saturate.",
        allowed=OTHER_LOSS,
    )


def growing_epsilon(suspect: AuditTarget) -> Check:
    """Success rises with ε."""
    masks = list(suspect.by_epsilon.values())
    curve = ", ".join(f"{100 * float(standing.float().mean()):.0f}" for standing in masks)
    return Check.of_count(
        "success rises with ε",
        max(int((~smaller & larger).sum()) for smaller, larger in pairwise(masks)),
        suspect.n,
        f"broken by a smaller ε and not by the next; accuracy {curve} %",
        "A larger ball holds the smaller one, so an attack that works breaks no less in it.",
    )


def large_epsilon(suspect: AuditTarget) -> Check:
    """Success reaches 100 % at a large ε."""
    epsilon, standing = list(suspect.by_epsilon.items())[-1]
    return Check.of_count(
        "a large ε breaks everything",
        int(standing.sum()),
        suspect.n,
        f"standing at {replace(suspect.threat, epsilon=epsilon)}",
        "At this ε every input can be turned into every other, so no classifier stands; an attack "
        "that leaves some does not know where to go.",
    )


ITERATIONS = 32  # of SPSA, as the paper has it
PAIRS = 2 * ITERATIONS  # queries for each of its samples


def noise(suspect: AuditTarget) -> Check:
    """Random noise finds nothing that attacks miss."""
    return _against_gradients(
        suspect,
        "random noise",
        [RandomNoise(suspect.threat, suspect.queries)],
        f"broken by {suspect.queries} random points and by no gradient attack",
        "Blind search is the weakest attack there is: what it finds, gradients should find.",
    )


def gradient_free(suspect: AuditTarget) -> Check:
    """Score-based attacks do not beat gradient ones."""
    attacks: list[Attack] = [SPSA(suspect.threat, ITERATIONS, suspect.queries // PAIRS + 1)]
    which = "SPSA"
    if suspect.trial.x.ndim == 4 or suspect.threat.norm == "linf":
        attacks.append(
            Budgeted("square", suspect.threat, suspect.trial.seed, budget=suspect.queries)
        )
        which = "SPSA or Square"
    return _against_gradients(
        suspect,
        "gradient-free attacks",
        attacks,
        f"broken by {which} and by no gradient attack",
        "They see outputs only, and cannot be misled by gradients; where they win, gradients hide "
        "what is there (Uesato et al., 2018).",
    )


def decision_based(suspect: AuditTarget) -> Check:
    """An attack that sees the predicted class alone does not beat gradient ones."""
    name = "decision-based attack"
    explanation = (
        "A search that sees the predicted class alone (ray search, Chen & Gu, 2020) is not misled "
        "by saturated or rounded outputs either."
    )
    if suspect.threat.norm != "linf":
        return Check.skipped(name, "ray search is made for ℓ∞", explanation)
    attack = RaySearch(suspect.threat, suspect.queries)
    found = "broken by ray search and by no gradient attack"
    return _against_gradients(suspect, name, [attack], found, explanation)


def transfer(suspect: AuditTarget) -> Check:
    """Transfer from an undefended model does not beat white-box attacks."""
    name = "transfer from an undefended model"
    explanation = (
        "Examples made for another model know nothing of this one; where they still do better than "
        "its own gradients, those are masked (Papernot et al., 2017)."
    )
    if suspect.surrogate is None:
        return Check.skipped(name, "no surrogate model was given", explanation)
    attacks = [
        Transfer(
            LastingPGD(suspect.threat, suspect.steps, suspect.restarts, loss=loss),
            suspect.surrogate, name=f"transfer {name}",
        )
        for name, loss in LOSSES.items()
    ]  # fmt: skip
    found = "broken by transfer and by no gradient attack"
    return _against_gradients(suspect, name, attacks, found, explanation)


def _against_gradients(
    suspect: AuditTarget, name: str, attacks: Sequence[Attack], what: str, explanation: str
) -> Check:
    standing = suspect.after_gradients
    for attack in attacks:
        standing = suspect.after(attack, standing)
    count = int((suspect.after_gradients & ~standing).sum())
    return Check.of_count(name, count, suspect.n, what, explanation)
