"""Networks for the studies and benchmarks; any `nn.Module` of yours serves as well."""

from .resnet import ResNet18

__all__ = ["ResNet18"]
