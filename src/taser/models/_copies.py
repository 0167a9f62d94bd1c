"""Copies of a network: one with averaged weights, and one with folded BatchNorm."""

import copy
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights


class EMA:
    """θ̄ ← d·θ̄ + (1 − d)·θ after each step, in `.model`; its buffers are copied from the network.

    d = min(decay, (1 + n)/(10 + n)) at step n, so that the first weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, n: int) -> None:
        """Move the average towards `model`, after step n."""
        d = min(self.decay, (1 + n) / (10 + n))
        for average, latest in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(latest, 1 - d)
        for buffer, now in zip(self.model.buffers(), model.buffers(), strict=True):
            buffer.copy_(now)


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)

Pair = tuple[Any, Any, Any]  # (folded layer, the model's layer, the model's norm)


class FoldedModel(nn.Module):
    """A model in evaluation mode whose BatchNorms are folded into the layers before them.

    γ(w∗x + b − μ)/√(v + ε) + β is one convolution with copied weights, which :meth:`refresh`
    updates once per training step. All other parts are shared with the model.
    """

    def __init__(self, graph: fx.GraphModule, pairs: list[Pair]) -> None:
        super().__init__()
        self.graph = graph
        self._pairs = pairs
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs in evaluation mode, up to rounding."""
        return self.graph(x)

    @torch.no_grad()
    def refresh(self) -> "FoldedModel":
        """Copy the current weights and statistics of the model."""
        for target, layer, norm in self._pairs:
            fuse = fuse_linear_bn_weights if isinstance(layer, nn.Linear) else fuse_conv_bn_weights
            weight, bias = fuse(
                layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps,
                norm.weight, norm.bias,
            )  # fmt: skip
            target.weight.copy_(weight)
            target.bias.copy_(bias)
        return self


def fold_batchnorm(model: nn.Module) -> FoldedModel | None:
    """A folded copy; None if there is nothing to fold, or the forward cannot be traced.

    Compare the two before use: a norm of another dimension than the outputs of the layer before
    it, as after a Linear on (B, C, L), looks the same in the graph.
    """
    modes = [(module, module.training) for module in model.modules()]
    if not any(isinstance(module, NORMS) for module, _ in modes):
        return None
    try:
        for module, _ in modes:
            module.training = False
        with warnings.catch_warnings(action="ignore"):
            graph = fx.symbolic_trace(model)
        pairs = _remove_norms(graph)
        return FoldedModel(graph, pairs).refresh() if pairs else None
    except Exception:  # tracing may fail in as many ways as people write forwards
        return None
    finally:
        for module, mode in modes:
            module.training = mode


def _remove_norms(graph: fx.GraphModule) -> list[Pair]:
    modules = dict(graph.named_modules())
    calls = [node for node in graph.graph.nodes if node.op == "call_module"]
    seen = Counter(node.target for node in calls)
    pairs: list[Pair] = []
    for node in calls:
        norm = modules[node.target]
        before: Any = node.args[0] if node.args else None
        if not (isinstance(norm, NORMS) and before in calls and norm.running_mean is not None):
            continue
        layer = modules[before.target]
        if len(before.users) > 1 or seen[before.target] > 1 or not isinstance(layer, LAYERS):
            continue
        target: Any = copy.copy(layer)  # with a bias, and copied weights
        target._parameters = dict(target._parameters)
        weight = target.weight.detach()
        target.weight = nn.Parameter(weight.clone(), requires_grad=False)
        target.bias = nn.Parameter(weight.new_zeros(len(weight)), requires_grad=False)
        graph.set_submodule(before.target, target)  # fx made the containers: not the model's
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)
        pairs.append((target, layer, norm))
    graph.recompile()
    return pairs


def supports_channels_last(model: nn.Module, device: str) -> bool:
    """False for a strided 1×1 convolution of fewer than eight channels on a CPU.

    Its weight gradient writes outside its memory there (torch 2.13, oneDNN, AVX2).
    """
    return device != "cpu" or not any(
        isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)
        and max(layer.stride) > 1 and layer.in_channels < 8
        for layer in model.modules()
    )  # fmt: skip
