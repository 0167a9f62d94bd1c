"""Probes: the scalar of a network's outputs that the Stein operator is applied to."""

from .logit import Logit
from .margin import Margin
from .output import Output
from .protocol import Probe, Probed

__all__ = ["Logit", "Margin", "Output", "Probe", "Probed"]
