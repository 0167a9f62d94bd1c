"""Faster copies for attacks: BatchNorm folded into the layers before, and channels last."""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

Pair = tuple[Any, Any, Any]
"""(folded layer, layer, norm), the latter two the model's own."""


class FoldedModel(nn.Module):
    """A model in evaluation mode whose BatchNorms have become part of the layers before them.

    γ(w∗x + b − μ)/√(v + ε) + β is one convolution. Its weights are copies, which :meth:`refresh`
    updates, once in each training step. Everything else is shared with the model, which is not
    changed. Made by :func:`fold_batchnorm`.
    """

    def __init__(self, graph: fx.GraphModule, pairs: list[Pair]) -> None:
        super().__init__()
        self.graph = graph
        self._pairs = pairs
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        """As the model in evaluation mode, to rounding."""
        return self.graph(x)

    @torch.no_grad()
    def refresh(self) -> "FoldedModel":
        """Copy the current weights and statistics of the model."""
        for target, layer, norm in self._pairs:
            weight, bias = _fused(layer, norm)
            target.weight.copy_(weight)
            target.bias.copy_(bias)
        return self


def fold_batchnorm(model: nn.Module) -> FoldedModel | None:
    """A folded copy; None if there is nothing to fold, or the forward cannot be traced.

    Compare the two before use: a norm of another dimension than the outputs of the layer before
    it, as after a Linear on (B, C, L), looks the same in the graph.
    """
    if not any(isinstance(module, NORMS) for module in model.modules()):
        return None
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = fx.symbolic_trace(model)
        pairs = _fold(graph)
        return FoldedModel(graph, pairs).refresh() if pairs else None
    except Exception:  # tracing may fail in as many ways as people write forwards
        return None
    finally:
        for module, mode in modes:
            module.training = mode


def _fold(graph: fx.GraphModule) -> list[Pair]:
    """Remove the norms from the graph; returns (folded layer, layer, norm) of each."""
    modules = dict(graph.named_modules())
    seen = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    pairs: list[Pair] = []
    for node in list(graph.graph.nodes):
        norm = modules.get(str(node.target)) if node.op == "call_module" else None
        before = node.args[0] if node.args else None
        if not isinstance(norm, NORMS) or not isinstance(before, fx.Node):
            continue
        layer = modules.get(str(before.target)) if before.op == "call_module" else None
        alone = len(before.users) == 1 and seen.count(before.target) == 1
        kind = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        if not (kind and alone and norm.running_mean is not None):
            continue
        assert isinstance(layer, nn.Module)
        target = _empty_copy(layer)
        graph.set_submodule(str(before.target), target)  # fx made the containers: not the model's
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)
        pairs.append((target, layer, norm))
    graph.recompile()
    return pairs


def _empty_copy(layer: Any) -> nn.Module:
    """A layer of the same shape with a bias, and weights of its own without gradients."""
    target = copy.copy(layer)
    target._parameters = dict(layer._parameters)
    outputs = layer.weight.shape[0]
    target.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    target.bias = nn.Parameter(layer.weight.new_zeros(outputs), requires_grad=False)
    return target


def _fused(layer: Any, norm: Any) -> tuple[Tensor, Tensor]:
    fuse = fuse_linear_bn_weights if isinstance(layer, nn.Linear) else fuse_conv_bn_weights
    return fuse(
        layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight,
        norm.bias,
    )  # fmt: skip


NARROW = 8


def supports_channels_last(model: nn.Module, device: str) -> bool:
    """False for a strided 1×1 convolution of fewer than eight channels on a CPU.

    Its weight gradient writes outside its memory there (torch 2.13, oneDNN, AVX2): a crash, or
    worse, none.
    """
    return device != "cpu" or not any(
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels < NARROW
        for layer in model.modules()
    )
