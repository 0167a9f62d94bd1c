"""Networks for the studies and benchmarks; any `nn.Module` of yours serves as well."""

from .build import build
from .cnn import SmallCNN
from .folded import Folded, folded
from .load import load_model
from .mlp import MLP
from .resnet import ResNet18
from .weights import load_weights, read_weights
from .wide_resnet import WideResNet

__all__ = [
    "MLP", "Folded", "ResNet18", "SmallCNN", "WideResNet", "build", "folded", "load_model",
    "load_weights", "read_weights",
]  # fmt: skip
