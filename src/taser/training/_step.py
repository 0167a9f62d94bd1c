"""One step of training: attack, loss, regulariser, teacher, backward, update."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser._runtime import all_sum, world_size
from taser.models._copies import FoldedModel, fold_batchnorm
from taser.objectives import Objective, perturbed, teacher_kl
from taser.regularisers import Regulariser
from taser.stein import SharedPass
from taser.stein._model_state import eval_mode, unwrap_ddp

TRIED = 8  # examples that a folded copy is checked on

Numbers = dict[str, Tensor]


class NonFiniteLoss(RuntimeError):
    """The loss is NaN or infinite: training has to stop before it spoils the weights."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A part of a batch. share: rows of this part / rows of the batch."""

    x: Tensor
    y: Tensor
    x_adv: Tensor
    share: float


@dataclass
class Learner:
    """What a step needs, and everything that it changes.

    model: as Accelerate prepared it, perhaps wrapped in DistributedDataParallel. attack_view: gives
    the callable to attack. teacher_weight: α, the weight of the KL to the teacher. awp_gamma: size
    of the weight perturbation. clip: the largest norm of the gradient. accumulate: number of
    micro-batches. step_number: number of the next step, from zero.
    """

    model: nn.Module
    objective: Objective
    optimiser: torch.optim.Optimizer
    precision: "Precision"
    attack_view: "AttackView"
    regulariser: Regulariser | None = None
    teacher: nn.Module | None = None
    teacher_weight: float = 0.0
    awp_gamma: float = 0.005
    clip: float | None = None
    accumulate: int = 1
    step_number: int = 0

    @property
    def module(self) -> nn.Module:
        """The model without DistributedDataParallel."""
        module = unwrap_ddp(self.model)
        assert isinstance(module, nn.Module)
        return module

    def step(
        self, x: Tensor, y: Tensor, generator: torch.Generator, *, weight: float, perturb: bool
    ) -> Numbers:
        """One update. weight: λ; perturb: whether to apply adversarial weight perturbation.

        Returns the loss, its parts and the batch accuracies as detached scalars.
        """
        parts = self._attack(x, y, generator)
        self.optimiser.zero_grad(set_to_none=True)
        numbers: Numbers = {}
        # Several processes exchange gradients once a step, in the last micro-batch's backward.
        no_sync = getattr(self.model, "no_sync", nullcontext)
        with self._perturbed(parts) if perturb else nullcontext():
            for part in parts:
                with nullcontext() if part is parts[-1] else no_sync():
                    total, found = self.loss(self.model, part, weight)
                    _check_finite(total, found)
                    self.precision.scaler.scale(part.share * total).backward()
                for name, value in found.items():
                    numbers[name] = numbers.get(name, 0.0) + part.share * value
            self._update()
        if world_size() > 1:  # each process saw its own part of the batch
            means = all_sum(torch.stack(list(numbers.values()))) / world_size()
            numbers = dict(zip(numbers, means, strict=True))
        return numbers

    def _attack(self, x: Tensor, y: Tensor, generator: torch.Generator) -> list[MicroBatch]:
        """The batch in parts of nearly equal size, each with its adversarial points."""
        model = self.attack_view.of(self.module, x) if self.objective.moves_inputs else self.module
        count = min(self.accumulate, len(x))
        parts = []
        for inputs, labels in zip(x.tensor_split(count), y.tensor_split(count), strict=True):
            with self.precision.autocast():
                x_adv = self.objective.attack(model, inputs, labels, generator=generator)
            parts.append(MicroBatch(inputs, labels, x_adv, len(inputs) / len(x)))
        return parts

    def loss(self, model: nn.Module, part: MicroBatch, weight: float) -> tuple[Tensor, Numbers]:
        """L_base + λR + α·KL(f_θ0 ‖ f_θ), and its parts."""
        x, y, regulariser = part.x, part.y, self.regulariser
        penalised = regulariser is not None and self.step_number % regulariser.every == 0
        shared = SharedPass(self.module if penalised else None)
        with self.precision.autocast(), shared:
            base = self.objective.loss(model, x, y, part.x_adv)
        if not self.precision.half:  # rounding would dominate the differences
            shared.outputs = base.clean
        total, numbers = base.total, {"base": base.total.detach(), **base.parts}
        if regulariser is not None:
            regulariser.calls = self.step_number  # `every` counts steps, not parts
            r = regulariser(self.module, x, y, shared=shared)
            if part.share < 1:  # after the correction from the drawn rows to this part
                r = r * regulariser.batch_correction(len(x), round(len(x) / part.share))
            total, numbers["penalty"] = total + weight * r, r.detach()
        if self.teacher is not None:
            with self.precision.autocast():
                with torch.no_grad():
                    before = self.teacher(x)
                kl = teacher_kl(before, model(x) if base.clean is None else base.clean)
            total, numbers["teacher"] = total + self.teacher_weight * kl, kl.detach()
        numbers = {"loss": total.detach(), **numbers}
        for name, outputs in (("clean", base.clean), ("attacked", base.attacked)):
            if outputs is not None and not y.is_floating_point():
                numbers[name] = (outputs.detach().argmax(1) == y).float().mean()
        return total, numbers

    def _perturbed(self, parts: list[MicroBatch]) -> AbstractContextManager:
        """Move the weights to where the batch's loss is higher; on exit move them back."""

        def ascent(model: nn.Module, part: MicroBatch) -> Tensor:
            with self.precision.autocast():
                total = self.objective.loss(model, part.x, part.y, part.x_adv).total
            # In float16 small gradients would vanish; the moves do not depend on the scale.
            return self.precision.scaler.scale(part.share * total)

        losses = [partial(ascent, part=part) for part in parts]
        return perturbed(self.model, losses, self.awp_gamma)

    def _update(self) -> None:
        scaler = self.precision.scaler
        scaler.unscale_(self.optimiser)
        limit = math.inf if self.clip is None else self.clip
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), limit)
        if not scaler.is_enabled() and not bool(torch.isfinite(norm)):  # float16 skips such steps
            raise NonFiniteLoss("the gradient is not finite")
        scaler.step(self.optimiser)
        scaler.update()


def _check_finite(total: Tensor, numbers: Numbers) -> None:
    finite = torch.isfinite(total.detach()).float()
    if world_size() > 1:  # all stop, or the others would wait for ever
        dist.all_reduce(finite, dist.ReduceOp.MIN)
    if not bool(finite):
        shown = ", ".join(f"{name} {float(value):.4g}" for name, value in numbers.items())
        raise NonFiniteLoss(f"the loss is not finite ({shown})")


class Precision:
    """Autocast around the base loss, and the scaling of gradients that float16 needs.

    Accelerate's autocast is not used: it would also apply to the penalty.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "auto":
            fits = device.type == "cuda" and torch.cuda.is_bf16_supported(False)
            name = "bfloat16" if fits else "float32"
        if name == "float16" and device.type == "cpu":
            raise ValueError("float16 training needs a GPU; on a CPU use float32 or bfloat16")
        self.dtype, self.device, self.half = getattr(torch, name), device.type, name != "float32"
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    def autocast(self) -> AbstractContextManager:
        """The context for the attack and the base loss."""
        return torch.autocast(self.device, self.dtype) if self.half else nullcontext()


@dataclass
class AttackView:
    """What attacks call. fold: fold BatchNorm into the layer before it, if the outputs agree."""

    fold: bool = True
    _folded: FoldedModel | None = field(default=None, init=False, repr=False)

    def of(self, module: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The callable to attack: the folded copy with current weights, or the module itself.

        x: a batch (B, *), used once to check the fold.
        """
        if self.fold and self._folded is None:
            self._try_to_fold(module, x[:TRIED])
        return module if self._folded is None else self._folded.refresh()

    def _try_to_fold(self, module: nn.Module, x: Tensor) -> None:
        """Keep a folded copy if it agrees up to rounding: 1e-4, or 2e-3 with TF32."""
        copy = fold_batchnorm(module)
        if copy is None:
            self.fold = False
            return
        with eval_mode(module, freeze=True), torch.no_grad():
            expected = module(x.clone())  # the first layer may work in place
            tolerance = 2e-3 if expected.is_cuda and torch.backends.cudnn.allow_tf32 else 1e-4
            try:
                error = (copy(x.clone()) - expected).abs().max()
                self.fold = bool(error <= tolerance * expected.abs().max().clamp_min(1.0))
            except Exception:  # layers fail in as many ways as people write them
                self.fold = False
        # If all outputs are equal (zero last layer) this proves nothing; try again next step.
        if self.fold and bool((expected != expected[0]).any()):
            self._folded = copy
