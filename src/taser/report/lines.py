"""How the lines of a variant look, the same in every figure."""

from collections.abc import Sequence
from typing import Any

from .method_table import variant_of

COLOURS = {"off": "#6b7280", "taser": "#2563eb", "gradient": "#d97706"}
KINDS = {"off": "method alone", "taser": "TASER", "gradient": "‖∇m‖²", "other": "others"}
MOST_NAMED = 6
"""A legend of more names than this would hide what it explains."""


def kind(variant: str) -> str:
    """What a variant is one of: "taser λ=0.1" and "TASER as it is" are both "taser"."""
    first = variant.split()[0].lower()
    return first if first in COLOURS else "other"


def label(variant: str) -> str:
    """A variant's name in a legend."""
    return "method alone" if variant == "off" else variant_of(variant)


def colour(variant: str) -> str:
    """That of its kind."""
    return COLOURS.get(kind(variant), "#059669")


def looks(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's keywords for the line of each variant; of many only the kinds are named.

    >>> looks(["off", "taser"])["taser"]
    {'color': '#2563eb', 'label': '+ TASER'}
    """
    if len(variants) <= MOST_NAMED:
        return {name: {"color": colour(name), "label": label(name)} for name in variants}
    found: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    for name in variants:
        own = kind(name)
        thin = {"lw": 0.8, "alpha": 0.5, "zorder": 1} if own == "other" else {}
        found[name] = {
            "color": colour(name), "label": "_" if own in named else KINDS[own], **thin
        }  # fmt: skip
        named.add(own)
    return found
