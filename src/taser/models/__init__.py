"""Networks for the studies and benchmarks; any `nn.Module` of yours serves as well."""

from ._architectures import MLP, ResNet18, SmallCNN, WideResNet, Wrapped, build
from ._folding import Folded, folded
from ._weights import load_model, load_weights, read_weights

__all__ = [
    "MLP", "Folded", "ResNet18", "SmallCNN", "WideResNet", "Wrapped", "build", "folded",
    "load_model", "load_weights", "read_weights",
]  # fmt: skip
