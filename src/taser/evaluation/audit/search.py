"""Checks that a gradient attack does what it should: it has converged, from anywhere."""

from taser.attacks import FGSM

from .check import Check
from .suspect import LONGER, Suspect

OTHER_LOSS = 0.10
"""What the margin may break beyond cross-entropy: honest networks differ by some points,
hidden gradients by tens. A judgement of ours, not calibrated."""


def one_step(suspect: Suspect) -> Check:
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


def longer(suspect: Suspect) -> Check:
    """More iterations change little."""
    return Check.of_count(
        f"{LONGER}× more iterations",
        int((suspect.after_losses & ~suspect.after_longer).sum()),
        suspect.n,
        f"more broken by {LONGER * suspect.steps} steps than by {suspect.steps}",
        "An attack that more steps would still improve has not converged, and the accuracy that it "
        "leaves is too high.",
    )


def restarted(suspect: Suspect) -> Check:
    """More restarts change little."""
    return Check.of_count(
        "2× more restarts",
        int((suspect.after_losses & ~suspect.after_restarts).sum()),
        suspect.n,
        f"more broken by {2 * suspect.restarts} random starts than by {suspect.restarts}",
        "Where luck with the starting point decides, the loss is too rugged for gradients to lead.",
    )


def away_from_clean(suspect: Suspect) -> Check:
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


def margin_probe(suspect: Suspect) -> Check:
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
