"""Checks of what happens as the attacker is allowed more."""

from dataclasses import replace
from itertools import pairwise

from .check import Check
from .suspect import Suspect


def growing_epsilon(suspect: Suspect) -> Check:
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


def large_epsilon(suspect: Suspect) -> Check:
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
