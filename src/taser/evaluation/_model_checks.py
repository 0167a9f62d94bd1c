"""Checks of the data and of the model before an evaluation, and what attacks report of a model."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from taser.attacks import Attack, Model, Threat, input_gradient, margin
from taser.attacks._simple import Cascade
from taser.data._dataset import subset
from taser.models import TwoLogits
from taser.probes import looks_like_probabilities
from taser.stein._model_state import check_module, eval_mode, restored_buffers, restored_rng

from ._attack_loop import TRIED, Differentiable
from ._record import Finding, Verdicts, predictions

TOLERANCE = 1e-6  # of the box: what rounding does to pixels that were scaled in float32
COMPARED = 200  # examples whose distances are measured
CHANGE = 1e-4  # of the logits' length: more than rounding between two calls
SQUARE_ALONE = 0.002  # share of all examples: the limit in AutoAttack


def check_data(x: Tensor, y: Tensor, threat: Threat) -> list[Finding]:
    """Raise for inputs, labels or an ε that cannot be right. x: (N, *); y: (N,)."""
    if not isinstance(threat, Threat):
        raise ValueError(f"threat should be a taser.attacks.Threat; got {threat!r}")
    if not x.is_floating_point() or x.ndim < 2 or len(x) == 0:
        got = f"{x.dtype}" + " (divide bytes by 255)" * (x.dtype == torch.uint8)
        raise ValueError(f"x should be floating-point inputs (N, …); got {tuple(x.shape)} of {got}")
    if y.ndim == 2 and len(y) == len(x) and y.shape[1] > 1:
        one = "evaluate one label at a time, by taser.models.TwoLogits of its logit"
        got = f"y of shape {tuple(y.shape)} is multi-label"
        raise ValueError(f"{got}, which is not evaluated: {one}")
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        got = f"{tuple(y.shape)} of {y.dtype}"
        raise ValueError(f"y should be ({len(x)},) class numbers, int64; got {got}")
    low, high = (float(end) for end in torch.aminmax(x))  # NaN, if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("x should be finite; it has entries that are NaN or infinite")
    threat.check_inputs(x)
    if float((x - threat.into_box(x)).abs().max()) > TOLERANCE:
        what = f"x should lie in {threat.bounds_text}; got values from {low:g} to {high:g}"
        given = f"Threat(…, low={low:.3g}, high={high:.3g})"
        raise ValueError(
            f"{what}. Divide bytes by 255 and normalise inside the model (ε is in the units of x), "
            f"or give the true range of the inputs, such as {given}; low=None and high=None are "
            "for tables, whose features have no range"
        )
    if threat.low is not None and threat.epsilon > threat.reach(x) and not threat.has_structure:
        where = "reaches beyond the whole box of the inputs"
        raise ValueError(
            f"epsilon={threat.epsilon:g} {where}; did you mean {threat.epsilon:g}/255?"
        )
    rows = subset(len(x), COMPARED)  # the first might be all of one class
    close = float((_half_distance(x[rows], y[rows], threat) <= threat.epsilon).float().mean())
    if close <= 0.5:
        return []
    message = (
        f"{100 * close:.0f} % of the examples are within 2 ε of one of another class, at {threat}: "
        f"no model can be right around both; is {threat.epsilon:g} in the units of the inputs?"
    )
    return [Finding("epsilon", message)]


def _half_distance(x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Half the distance from each example to the nearest one of another class: (B,)."""
    flat, fixed = (
        threat.in_units(x).flatten(1).double(),
        (x * (threat.feature_unit(x) == 0)).flatten(1),
    )
    distance = torch.cdist(flat, flat, p={"linf": torch.inf, "l2": 2.0, "l1": 1.0}[threat.norm])
    if threat.has_fixed:
        distance[torch.cdist(fixed, fixed, p=1.0) > 0] = torch.inf
    return distance.masked_fill(y[:, None] == y[None], torch.inf).amin(1) / 2


class FixedBuffers(nn.Module):
    """Calls a module that changes its buffers with copies of the same buffers each time."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.training = module, module.training

    def forward(self, x: Tensor) -> Tensor:
        """As the module: (B, *) → (B, C)."""
        with restored_buffers(self.module):
            return self.module(x)


def fix_buffers(model: Model, x: Tensor) -> Model:
    """The model, or :class:`FixedBuffers` of it if a forward in eval mode changes its buffers.

    With two logits if its attribute `outputs` says that it gives one number.
    """
    model = TwoLogits.where_said(model)
    module = check_module(model)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with restored_buffers(module), eval_mode(module), restored_rng(x.device), torch.no_grad():
        module(x[:1].clone())
        same = all(torch.equal(before[name], b) for name, b in module.named_buffers())
    return model if same else FixedBuffers(module)


def check_model(model: Model, x: Tensor, y: Tensor) -> tuple[int, list[Finding]]:
    """Run a model on the first of n examples: the number of its classes, and findings; or raise."""
    norms = [part for part in check_module(model).modules() if isinstance(part, _BatchNorm)]
    if any(norm.running_mean is None or norm.running_var is None for norm in norms):
        why = "so that outputs depend on the batch: train with track_running_stats=True"
        raise ValueError(f"a BatchNorm has no running statistics, {why}")
    x = x[:TRIED]
    with eval_mode(model, freeze=True), restored_rng(x.device), torch.no_grad():
        logits, again, alone = (model(rows.clone()) for rows in (x, x, x[:1]))
    if isinstance(logits, Tensor) and logits.shape in ((len(x),), (len(x), 1)):
        say = "model.outputs = 'logit' or 'probability' (of class 1) says which it is"
        raise ValueError(f"the model gives one number an example, not logits: of two classes {say}")
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model should give logits ({len(x)}, classes); got {got}")
    classes = logits.shape[1]
    if broken := int((~logits.isfinite()).any(1).sum()):
        raise ValueError(f"the model gives NaN or infinity for {broken} of {len(x)} clean inputs")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        wanted = f"in 0…{classes - 1}, the model's classes"
        raise ValueError(f"y should be {wanted}; got {low} to {high}")
    return classes, list(_oddities_of(model, norms, x, logits, again, alone))


def _oddities_of(
    model: Model, norms: list[_BatchNorm], x: Tensor, logits: Tensor, again: Tensor, alone: Tensor
) -> Iterator[Finding]:
    """again: the logits of a second call; alone: (1, C), logits of the first example alone."""
    if any(module.training for module in check_module(model).modules()):
        yield Finding("train mode", "the model was in train mode; evaluated in evaluation mode")
    fresh = [n for n in norms if not n.running_mean.any() and bool((n.running_var == 1).all())]  # type: ignore[union-attr]
    if fresh:
        what = f"{len(fresh)} of {len(norms)} BatchNorms still have the statistics they were made"
        yield Finding("BatchNorm", f"{what} with: were the buffers loaded?")
    with eval_mode(model, freeze=True), restored_rng(x.device):
        slope = input_gradient(Differentiable(model), x, logits.new_zeros(len(x)).long(), margin)
    if not slope.any():
        what = f"at the first {len(x)} examples the model's gradient is zero (no_grad, detach, "
        so = "attacks that follow it do not move, so only Square and SPSA are informative"
        yield Finding("no gradient", f"{what}rounded inputs?): {so}; audit the model")
    length = logits.norm(dim=1).clamp_min(1e-12)
    if bool(((logits - again).norm(dim=1) > CHANGE * length).any()):
        what = "the model's outputs change between calls, so one prediction proves little"
        yield Finding("stochastic", f"{what}; attack the average over draws")
    elif float((logits[0] - alone[0]).norm()) > CHANGE * float(length[0]):
        what = "an example's output depends on the others in its batch: verdicts do too"
        yield Finding("coupled", what)
    calls = [patch(f"torch.autograd.{name}") for name in ("backward", "grad")]
    with calls[0] as one, calls[1] as other, suppress(Exception), restored_rng(x.device):
        predictions(model, x[:1])
    if one.called or other.called:
        what = "the model differentiates when it is called, as a defence that adapts to its input"
        yield Finding("dynamic", f"{what}: gradients through it may mislead")
    if looks_like_probabilities(logits):
        what = "the model gives probabilities: they saturate, and gradients vanish with them"
        yield Finding("probabilities", f"{what}; evaluate its logits")


def oddities(findings: Iterable[Finding]) -> list[str]:
    """The names of those findings that make the model another function to attack."""
    names = ("no gradient", "probabilities", "stochastic")
    return sorted(finding.name for finding in findings if finding.name in names)


def replaced_stages(plan: Sequence[Attack]) -> list[Finding]:
    """What a cascade runs in place of stages that it cannot."""
    return [Finding(a.name, a.note) for a in plan if isinstance(a, Cascade) and a.note]


def square_findings(found: Verdicts) -> list[Finding]:
    """A finding where Square, which needs no gradients, broke what gradient attacks did not."""
    share = float((found.stage == len(found.stages) - 1).sum()) / len(found.stage)
    if len(found.stages) < 2 or found.stages[-1] != "square" or share <= SQUARE_ALONE:
        return []
    message = f"{100 * share:.1f} % were broken by Square alone: gradients may mislead, so audit it"
    return [Finding("square", message)]
