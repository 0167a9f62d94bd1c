"""How an attack shows itself."""

from dataclasses import fields
from typing import Any

from torch import nn


def in_words(attack: Any) -> str:
    """Its name and options; a function is shown by its name, a network by its class.

    >>> from taser.attacks import FGSM, Threat
    >>> repr(FGSM(Threat("linf", 0.1)))[-32:]
    "loss=cross_entropy, name='fgsm')"
    """
    options = ", ".join(f"{f.name}={_shown(getattr(attack, f.name))}" for f in fields(attack))
    return f"{type(attack).__name__}({options})"


def _shown(value: Any) -> str:
    if isinstance(value, nn.Module):
        return type(value).__name__
    return getattr(value, "__qualname__", None) or repr(value)
