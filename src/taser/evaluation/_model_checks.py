"""What attacks have to say of a model, besides breaking it."""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from taser.attacks import Attack, AutoAttackPart, Model, Threat, input_gradient, margin
from taser.attacks._attack import Cascade, stages_of
from taser.attacks._autoattack import check_with_package
from taser.data._splitting import subset
from taser.models._folding import fold_batchnorm
from taser.probes import looks_like_probabilities
from taser.stein._model_state import check_module, eval_mode, restored_rng

from ._attack_loop import told
from ._record import Finding, Verdicts


class Differentiable(nn.Module):
    """The same outputs; a model that detaches its input has a gradient of zero, not an error.

    Gradient attacks then stay at x, and the evaluation or audit reports it instead of ending.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = check_module(model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, C), with a graph to x."""
        z = _asked(self.model, x)
        if z.is_inference():  # which nobody may change
            z = z.clone()
        if z.requires_grad or not torch.is_grad_enabled():
            return z
        return z + 0 * x.flatten(1).sum(1, keepdim=True)


def _asked(model: Model, x: Tensor) -> Tensor:
    """Of a copy, for the model may work in place; one that computes with numpy wants no graph."""
    try:
        return model(x.clone())
    except RuntimeError as error:
        if not (x.requires_grad and "numpy" in str(error)):
            raise
        return model(x.detach().clone())


TRIED = 32  # examples that a model is checked and prepared with
OUTPUTS = 1e-4  # of the largest logit: float32 rounding through a deep network stays well below
GRADIENTS = 1e-2  # of the gradient's length: rounding moves a few kinks of ReLU
AT_ONCE = 64  # images on a CPU: LeNet-5 answers twice as fast as with 192
VALUES = AT_ONCE * 28 * 28  # of smaller images as many more: 8×8 digits gain a fifth to a half


def prepare(model: Model, x: Tensor, y: Tensor) -> Model:
    """The quickest form of `model` that gives the same logits and gradients on the first examples.

    x: (n, *); y: (n,). The model itself is left as it is. Whatever cannot be copied, traced or
    folded is used plainly: preparation saves time and never changes what is measured.
    """
    if not isinstance(model, nn.Module):
        return model
    try:
        plain = copy.deepcopy(model).eval().requires_grad_(False)
    except Exception:  # a module may refuse to be copied in any way it likes
        return model
    for candidate in _candidates(plain, x):
        try:
            same = _same(plain, candidate, x[:TRIED], y[:TRIED])
        except Exception:  # a `view` that wants another memory format, a size that was fixed
            continue
        if same:
            return candidate
    return plain


def _candidates(plain: nn.Module, x: Tensor) -> Iterator["_Quick"]:
    """From the most to the least that can be done."""
    for inner in (fold_batchnorm(plain), plain):
        for channels_last in (True, False) if x.ndim == 4 else (False,):
            if inner is not None:
                yield _Quick(inner, channels_last)


class _Quick(nn.Module):
    """Few images at a time, whose activations stay in a CPU's cache, with channels innermost."""

    def __init__(self, inner: nn.Module, channels_last: bool) -> None:
        super().__init__()
        self.inner, self.channels_last = inner, channels_last
        if channels_last:  # of a copy: formats belong to tensors, which candidates share
            self.inner = copy.deepcopy(inner).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """As the model: (B, *) → (B, C)."""
        size = max(AT_ONCE, VALUES // x.shape[1:].numel())
        if x.is_cpu and len(x) > size:
            return torch.cat([self(part) for part in x.split(size)])
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return self.inner(x)


def _same(plain: Model, quick: Model, x: Tensor, y: Tensor) -> bool:
    """Whether logits and gradients are the same up to rounding. x: (B, *); y: (B,).

    Gradients are compared as well: tracing forgets a `no_grad` inside a model, which would show
    an attack what the model hides. They are asked a little off the examples, because at flat
    pixels kinks and ties abound, where rounding picks one gradient of several. A batch of one
    finds sizes that tracing has fixed.
    """
    with torch.no_grad():
        wanted, found, alone = plain(x.clone()), quick(x.clone()), quick(x[:1].clone())
    allowed = OUTPUTS * (float(wanted.abs().max()) + 1e-12)
    for one, other in ((found, wanted), (alone, wanted[:1])):
        if not float((one - other).abs().max()) <= allowed:
            return False
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    slope, same = (input_gradient(f, x + 0.01 * noise, y, margin) for f in (plain, quick))
    return float((same - slope).norm()) <= GRADIENTS * float(slope.norm()) + 1e-12


TOLERANCE = 1e-6  # of the box: what rounding does to pixels that were scaled in float32
COMPARED = 200  # examples whose distances are measured
CHANGE = 1e-4  # of the logits' length: more than rounding between two calls


def check_data(x: Tensor, y: Tensor, threat: Threat) -> list[Finding]:
    """Raise for inputs, labels or ε that cannot be meant. x: (N, *); y: (N,)."""
    if not isinstance(threat, Threat):
        raise ValueError(f"threat should be a taser.attacks.Threat; got {threat!r}")
    if not x.is_floating_point() or x.ndim < 2 or len(x) == 0:
        raise ValueError(
            f"x should be floating-point inputs (N, …); got {tuple(x.shape)} of {x.dtype}"
            + (" (divide bytes by 255)" if x.dtype == torch.uint8 else "")
        )
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        raise ValueError(
            f"y should be ({len(x)},) class numbers, int64; got {tuple(y.shape)} of {y.dtype}"
        )
    low, high = (float(end) for end in torch.aminmax(x))  # NaN, if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("x should be finite; it has entries that are NaN or infinite")
    _check_box(low, high, threat)
    return _check_epsilon(x, y, threat)


def _check_box(low: float, high: float, threat: Threat) -> None:
    below = threat.low is not None and low < threat.low - TOLERANCE
    above = threat.high is not None and high > threat.high + TOLERANCE
    if below or above:
        raise ValueError(
            f"x should lie in [{threat.low:g}, {threat.high:g}]; got values from {low:g} to "
            f"{high:g}. Divide bytes by 255, let the model normalise inside itself, or for tables "
            "take Threat(…, low=None, high=None)"
        )


def _check_epsilon(x: Tensor, y: Tensor, threat: Threat) -> list[Finding]:
    """ε against the box, and against the room between classes, which every data set has."""
    if threat.low is not None and threat.high is not None:
        side = math.sqrt(x[0].numel()) if threat.norm == "l2" else 1.0
        if threat.epsilon > side * (threat.high - threat.low):
            raise ValueError(
                f"epsilon={threat.epsilon:g} reaches beyond the whole box of the inputs; did you "
                f"mean {threat.epsilon:g}/255?"
            )
    rows = subset(len(x), COMPARED)  # the first might be all of one class
    met = float((_room(x[rows], y[rows], threat) <= threat.epsilon).float().mean())
    if met <= 0.5:
        return []
    message = (
        f"within {threat} {100 * met:.0f} % of the examples meet one of another class half way: no "
        f"model can be right on both; is {threat.epsilon:g} in the units of the inputs?"
    )
    return [Finding("epsilon", message)]


def _room(x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Half the distance from each example to the nearest one of another class: (B,)."""
    flat = x.flatten(1).double()
    distance = torch.cdist(flat, flat, p=2.0 if threat.norm == "l2" else torch.inf)
    return distance.masked_fill(y[:, None] == y[None], torch.inf).amin(1) / 2


def check_model(model: Model, x: Tensor, y: Tensor) -> tuple[int, list[Finding]]:
    """Ask a model about the first examples: the number of its classes, and what is odd about it.

    Raise for what cannot be evaluated. x: (n, *); y: (n,), of which every label is checked.
    """
    modules = list(check_module(model).modules())
    findings = [*_check_modes(modules), *_check_batch_norms(modules)]
    x = x[:TRIED]
    with eval_mode(model, freeze=True), restored_rng(x.device), torch.no_grad():
        logits, again, alone = (model(rows.clone()) for rows in (x, x, x[:1]))
    _check_logits(logits, x)
    _check_labels(y, logits.shape[1])
    findings += _check_gradient(model, x)
    return logits.shape[1], [*findings, *_check_answers(logits, again, alone)]


def _check_modes(modules: list[nn.Module]) -> Iterator[Finding]:
    if any(module.training for module in modules):
        yield Finding("train mode", "the model was in train mode; evaluated in evaluation mode")


def _check_batch_norms(modules: list[nn.Module]) -> Iterator[Finding]:
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    if any(norm.running_mean is None or norm.running_var is None for norm in norms):
        raise ValueError(
            "a BatchNorm has no running statistics, so that one example's answer depends on the "
            "others in its batch: train with track_running_stats=True"
        )
    fresh = [n for n in norms if not n.running_mean.any() and bool((n.running_var == 1).all())]  # type: ignore[union-attr]
    if fresh:
        yield Finding(
            "BatchNorm",
            f"{len(fresh)} of {len(norms)} BatchNorms still have the statistics they were made "
            "with: were the buffers loaded?",
        )


def _check_logits(logits: Tensor, x: Tensor) -> None:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model should give logits ({len(x)}, classes); got {got}")
    if logits.shape[1] < 2:
        raise ValueError("the model gives one number an example; logits of two classes are needed")
    broken = int((~logits.isfinite()).any(1).sum())
    if broken:
        raise ValueError(f"the model gives NaN or infinity for {broken} of {len(x)} clean inputs")


def _check_labels(y: Tensor, classes: int) -> None:
    """Raise for labels that the model has no logit for. y: (N,)."""
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(
            f"y should be in 0…{classes - 1}, the model's classes; got {int(y.min())} to "
            f"{int(y.max())}"
        )


def _check_gradient(model: Model, x: Tensor) -> Iterator[Finding]:
    with eval_mode(model, freeze=True), restored_rng(x.device):
        labels = x.new_zeros(len(x), dtype=torch.int64)
        slope = input_gradient(Differentiable(model), x, labels, margin)
    if not slope.any():
        yield Finding(
            "no gradient",
            f"at the first {len(x)} examples the model's gradient is zero (no_grad, detach, "
            "rounded inputs?): attacks that follow one stand still, so only Square and SPSA say "
            "something; audit it",
        )


def character(odd: Iterable[Finding]) -> list[str]:
    """Of what is odd about a model, the names of what makes it another function to attack."""
    return sorted(f.name for f in odd if f.name in ("no gradient", "probabilities", "stochastic"))


def _check_answers(logits: Tensor, again: Tensor, alone: Tensor) -> Iterator[Finding]:
    length = logits.norm(dim=1).clamp_min(1e-12)
    if bool(((logits - again).norm(dim=1) > CHANGE * length).any()):
        yield Finding(
            "stochastic",
            "the model's answers change between calls: one wrong answer in many is no robustness "
            "lost, and one right answer none proved; attack the average over draws",
        )
    elif float((logits[0] - alone[0]).norm()) > CHANGE * float(length[0]):
        yield Finding(
            "coupled", "an example's answer depends on the others in its batch: verdicts do too"
        )
    if looks_like_probabilities(logits):
        yield Finding(
            "probabilities",
            "the model gives probabilities: they saturate, and gradients vanish with them; "
            "evaluate its logits",
        )


HIDDEN = 0.002  # of all examples, broken by Square alone: AutoAttack's own alarm


def notes(model: Model, x: Tensor, y: Tensor, plan: Sequence[Attack]) -> list[Finding]:
    """What the attacks have to say beforehand: stages replaced, and AutoAttack's own checks."""
    notes = [Finding(a.name, a.note) for a in plan if isinstance(a, Cascade) and a.note]
    if any(isinstance(stage, AutoAttackPart) for a in plan for stage in stages_of(a)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_with_package(model, x[:TRIED], y[:TRIED])
        notes += told(caught, "autoattack")
    return notes


def hidden(found: Verdicts) -> list[Finding]:
    """AutoAttack's alarm: what needs no gradients should find nothing that gradients missed."""
    if len(found.stages) < 2 or found.stages[-1] != "square":
        return []
    share = float((found.stage == len(found.stages) - 1).sum()) / len(found.stage)
    if share <= HIDDEN:
        return []
    message = f"{100 * share:.1f} % were broken by Square alone: gradients may mislead, so audit it"
    return [Finding("square", message)]
