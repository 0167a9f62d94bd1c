"""Training: recipes, one loop for every method and machine, and runs that survive being killed."""

from .config import Config
from .recipe import override, read_recipe, to_yaml
from .result import Result, load_trained
from .run import train
from .step import Learner, NonFiniteLoss

__all__ = [
    "Config", "Learner", "NonFiniteLoss", "Result", "load_trained", "override", "read_recipe",
    "to_yaml", "train",
]  # fmt: skip
