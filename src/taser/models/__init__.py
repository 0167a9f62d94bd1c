"""Networks to begin with; any `nn.Module` of yours serves as well."""

from taser._runtime import wrap_public_api

from ._architectures import MLP, ResNet18, SmallCNN, TwoLogits, WideResNet, Wrapped, build
from ._weights import load_model, load_weights, read_weights

__all__ = [
    "MLP", "ResNet18", "SmallCNN", "TwoLogits", "WideResNet", "Wrapped", "build", "load_model",
    "load_weights", "read_weights",
]  # fmt: skip

# Check argument types, and name arguments in errors.
wrap_public_api(globals(), ("build", "load_model", "load_weights", "read_weights"))
