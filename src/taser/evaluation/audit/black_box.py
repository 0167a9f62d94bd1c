"""Checks that attacks which know less find nothing that gradients missed."""

from collections.abc import Sequence

from taser.attacks import SPSA, Attack, LastingPGD, RandomNoise, Transfer

from .budgeted import Budgeted
from .check import Check
from .ray_search import RaySearch
from .suspect import LOSSES, Suspect

ITERATIONS = 32  # of SPSA, as the paper has it
PAIRS = 2 * ITERATIONS  # queries for each of its samples


def noise(suspect: Suspect) -> Check:
    """Random noise finds nothing that attacks miss."""
    return _against_gradients(
        suspect,
        "random noise",
        [RandomNoise(suspect.threat, suspect.queries)],
        f"broken by {suspect.queries} random points and by no gradient attack",
        "Blind search is the weakest attack there is: what it finds, gradients should find.",
    )


def gradient_free(suspect: Suspect) -> Check:
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


def decision_based(suspect: Suspect) -> Check:
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


def transfer(suspect: Suspect) -> Check:
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
    suspect: Suspect, name: str, attacks: Sequence[Attack], what: str, explanation: str
) -> Check:
    standing = suspect.after_gradients
    for attack in attacks:
        standing = suspect.after(attack, standing)
    count = int((suspect.after_gradients & ~standing).sum())
    return Check.of_count(name, count, suspect.n, what, explanation)
