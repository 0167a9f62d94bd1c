"""Training: recipes, one loop for every method and machine, and runs that survive being killed."""

from ._build import Setup, set_up

from ._config import (  # isort: skip
    Config, DataConfig, LoopConfig, ModelConfig, ObjectiveConfig, OptimiserConfig,
    RegulariserConfig, ScheduleConfig, TeacherConfig, ValidationConfig,
)  # fmt: skip
from ._recipes import override, read_recipe, to_yaml
from ._run import train
from ._run_folder import Result, load_trained
from ._step import Learner, NonFiniteLoss

__all__ = [
    "Config", "DataConfig", "Learner", "LoopConfig", "ModelConfig", "NonFiniteLoss",
    "ObjectiveConfig", "OptimiserConfig", "RegulariserConfig", "Result", "ScheduleConfig",
    "Setup", "TeacherConfig", "ValidationConfig", "load_trained", "override", "read_recipe",
    "set_up", "to_yaml", "train",
]  # fmt: skip
