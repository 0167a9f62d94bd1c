"""Training: recipes, one loop for every method and machine, and runs that survive being killed."""

from ._config import Config
from ._recipes import override, read_recipe, to_yaml
from ._result import Result, load_trained
from ._run import train
from ._step import Learner, NonFiniteLoss

__all__ = [
    "Config", "Learner", "NonFiniteLoss", "Result", "load_trained", "override", "read_recipe",
    "to_yaml", "train",
]  # fmt: skip
