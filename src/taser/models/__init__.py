"""Networks to begin with; any `nn.Module` of yours serves as well."""

from taser._runtime import check_arguments

from ._architectures import MLP, ResNet18, SmallCNN, TwoLogits, WideResNet, Wrapped, build
from ._weights import load_model, load_weights, read_weights

__all__ = [
    "MLP", "ResNet18", "SmallCNN", "TwoLogits", "WideResNet", "Wrapped", "build", "load_model",
    "load_weights", "read_weights",
]  # fmt: skip

check_arguments(globals(), ("build", "load_model", "load_weights", "read_weights"))
