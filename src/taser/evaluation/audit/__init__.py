"""The audit: whether to believe what gradient attacks say of a model."""

from .audit import CHECKS, TooFewRight, audit
from .check import Check
from .ray_search import RaySearch
from .result import Audit, Point
from .surrogate import undefended

__all__ = ["CHECKS", "Audit", "Check", "Point", "RaySearch", "TooFewRight", "audit", "undefended"]
