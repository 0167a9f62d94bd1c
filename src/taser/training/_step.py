"""One step of training: attack, loss, regulariser, teacher, backward, update."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser._distributed import world_size
from taser.models._folding import FoldedModel, fold_batchnorm
from taser.objectives import Loss, Objective, perturbed, teacher_kl
from taser.regularisers import Regulariser
from taser.stein import SharedPass
from taser.stein._model_state import eval_mode, restored_buffers, unwrap_ddp

TRIED = 8


@dataclass
class AttackView:
    """fold: a copy whose BatchNorms are folded; compile: and compiled."""

    fold: bool = True
    compile: bool = False
    _folded: FoldedModel | None = field(default=None, init=False, repr=False)
    _compiled: Callable[[Tensor], Tensor] | None = field(default=None, init=False, repr=False)

    def of(self, module: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The module with its weights of now, in evaluation mode. x: (B, *), to try it on."""
        model = self._folded_copy(module, x) if self.fold else module
        if not self.compile:
            return model
        if self._compiled is None:
            self._compiled = torch.compile(model, dynamic=False)
        return self._compiled

    def _folded_copy(self, module: nn.Module, x: Tensor) -> nn.Module:
        if self._folded is None:
            copy = fold_batchnorm(module)
            with eval_mode(module, freeze=True), torch.no_grad():
                few = x[:TRIED]  # in copies: the module may begin in place
                own = module(few.clone())
                if copy is None or not _alike(_answers(copy, few), own):
                    self.fold = False
                    return module
            if bool((own == own[0]).all()):  # a last layer that is still zero hides what folds
                return module
            self._folded = copy
        return self._folded.refresh()


def _answers(copy: nn.Module, x: Tensor) -> Tensor | None:
    """Of the folded copy; None where it cannot be asked, as with layers that hooks compute."""
    try:
        return copy(x.clone())
    except Exception:  # in as many ways as people write layers
        return None


def _alike(one: Tensor | None, two: Tensor) -> bool:
    """Equal up to rounding, which is that of ten bits where a GPU's convolutions use TF32."""
    tolerance = 2e-3 if two.is_cuda and torch.backends.cudnn.allow_tf32 else 1e-4
    if one is None:
        return False
    return bool((one - two).abs().max() <= tolerance * two.abs().max().clamp_min(1.0))


DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """Autocast around the base loss, and the scaling of gradients that float16 needs.

    It is ours rather than Accelerate's, which wraps the model's own forward: that would follow the
    model into the penalty, whose differences drown in the rounding of half precision.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "auto":
            fits = device.type == "cuda" and torch.cuda.is_bf16_supported(False)
            name = "bfloat16" if fits else "float32"
        if name == "float16" and device.type == "cpu":
            raise ValueError("float16 training needs a GPU; on a CPU use float32 or bfloat16")
        self.name = name
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    @property
    def half(self) -> bool:
        """Whether the base loss computes in half precision."""
        return DTYPES[self.name] is not None

    def autocast(self) -> AbstractContextManager:
        """The context of the attack and of the base loss."""
        dtype = DTYPES[self.name]
        return torch.autocast(self.device.type, dtype) if dtype else nullcontext()


Numbers = dict[str, Tensor]


class NonFiniteLoss(RuntimeError):
    """The loss is NaN or infinite: training has to stop before it spoils the weights."""


@dataclass(frozen=True, eq=False)
class Examples:
    """A part of a batch, and its share of it. s: cached scores, or None; moved: x attacked."""

    x: Tensor
    y: Tensor
    s: Tensor | None
    moved: Tensor
    share: float


@dataclass
class Learner:
    """What a step needs, and everything that it changes.

    model: as Accelerate prepared it, perhaps wrapped for several processes. alpha: the teacher's
    weight; gamma: of the weight perturbation; parts: how many pieces a batch is taken in; number:
    of the step, from zero; attacked: the form of the model that attacks run.
    """

    model: nn.Module
    objective: Objective
    optimiser: torch.optim.Optimizer
    precision: Precision
    regulariser: Regulariser | None = None
    teacher: nn.Module | None = None
    alpha: float = 0.0
    gamma: float = 0.005
    penalty_in_ascent: bool = False
    clip: float | None = None
    parts: int = 1
    number: int = 0
    attacked: AttackView = field(default_factory=AttackView)

    @property
    def module(self) -> nn.Module:
        """The model without the wrapper of several processes."""
        module = unwrap_ddp(self.model)
        assert isinstance(module, nn.Module)
        return module

    def step(
        self, x: Tensor, y: Tensor, s: Tensor | None, generator: torch.Generator,
        *, weight: float, perturb: bool,
    ) -> Numbers:  # fmt: skip
        """One update. weight: λ now; perturb: whether weights are perturbed now.

        Returns the loss, its parts and the batch accuracies as detached scalars.
        """
        pieces = self._attacked(x, y, s, generator)
        self.optimiser.zero_grad(set_to_none=True)
        numbers: Numbers = {}
        with self._perturbed(pieces, weight) if perturb else nullcontext():
            for piece in pieces:
                with nullcontext() if piece is pieces[-1] else self._local_gradients():
                    total, found = self.loss(self.model, piece, weight)
                    self._check(total, found)
                    self.precision.scaler.scale(piece.share * total).backward()
                for name, value in found.items():
                    numbers[name] = numbers.get(name, 0.0) + piece.share * value
            self._update()
        return _of_all(numbers)

    def loss(self, model: nn.Module, piece: Examples, weight: float) -> tuple[Tensor, Numbers]:
        """L_base + λR + α·KL(f_θ0 ‖ f_θ), and its parts."""
        shared = SharedPass(self.module if self._penalised else None)
        with self.precision.autocast(), shared:
            base = self.objective.loss(model, piece.x, piece.y, piece.moved)
        if not self.precision.half:  # differences of half-precision outputs would drown
            shared.outputs = base.clean
        total, numbers = base.total, {"base": base.total.detach(), **base.parts}
        if self.regulariser is not None:
            self.regulariser.calls = self.number  # `every` counts steps, not pieces
            r = self.regulariser(self.module, piece.x, piece.y, piece.s, shared=shared)
            batch = round(len(piece.x) / piece.share)
            if batch > len(piece.x):
                r = r * self.regulariser.batch_correction(len(piece.x), batch)
            total, numbers = total + weight * r, {**numbers, "penalty": r.detach()}
        if self.teacher is not None and self.alpha:
            kl = self._teacher_kl(model, piece.x, base)
            total, numbers = total + self.alpha * kl, {**numbers, "teacher": kl.detach()}
        return total, {"loss": total.detach(), **numbers, **_accuracies(base, piece.y)}

    @property
    def every(self) -> int:
        """Steps from one value of the regulariser to the next."""
        return 1 if self.regulariser is None else self.regulariser.every

    @property
    def _penalised(self) -> bool:
        """Whether the regulariser computes anything in this step."""
        return self.regulariser is not None and self.number % self.every == 0

    def _teacher_kl(self, model: nn.Module, x: Tensor, base: Loss) -> Tensor:
        assert self.teacher is not None
        with self.precision.autocast():
            with torch.no_grad():
                before = self.teacher(x)
            return teacher_kl(before, model(x) if base.clean is None else base.clean)

    def _attacked(
        self, x: Tensor, y: Tensor, s: Tensor | None, generator: torch.Generator
    ) -> list[Examples]:
        attacked = self.attacked.of(self.module, x) if self.objective.adversarial else self.module
        pieces = []
        parts = min(self.parts, len(x))
        inputs, labels = x.tensor_split(parts), y.tensor_split(parts)
        scores = s.tensor_split(parts) if s is not None else [None] * parts
        for part, own, score in zip(inputs, labels, scores, strict=True):
            with self.precision.autocast():
                moved = self.objective.attack(attacked, part, own, generator=generator)
            pieces.append(Examples(part, own, score, moved, len(part) / len(x)))
        return pieces

    def _perturbed(self, pieces: list[Examples], weight: float) -> AbstractContextManager:
        def ascent(piece: Examples) -> Callable[[nn.Module], Tensor]:
            def loss(model: nn.Module) -> Tensor:
                if self.penalty_in_ascent:
                    with _restored_state(self.regulariser):
                        total = self.loss(model, piece, weight)[0]
                else:
                    with self.precision.autocast():
                        total = self.objective.loss(model, piece.x, piece.y, piece.moved).total
                # In float16 small gradients would vanish; the moves do not depend on the scale.
                return self.precision.scaler.scale(piece.share * total)

            return loss

        return perturbed(self.model, [ascent(piece) for piece in pieces], self.gamma)

    def _local_gradients(self) -> AbstractContextManager:
        """Several processes meet once a step, in the last piece's backward pass."""
        no_sync = getattr(self.model, "no_sync", None)
        return no_sync() if no_sync is not None else nullcontext()

    def _check(self, total: Tensor, numbers: Numbers) -> None:
        finite = torch.isfinite(total.detach()).float()
        if world_size() > 1:  # all stop, or those that go on would wait for ever
            dist.all_reduce(finite, dist.ReduceOp.MIN)
        if not bool(finite):
            shown = ", ".join(f"{name} {float(value):.4g}" for name, value in numbers.items())
            raise NonFiniteLoss(f"the loss is not finite ({shown})")

    def _update(self) -> None:
        scaler = self.precision.scaler
        scaler.unscale_(self.optimiser)
        limit = math.inf if self.clip is None else self.clip
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), limit)
        if not scaler.is_enabled() and not bool(torch.isfinite(norm)):  # float16 skips such steps
            raise NonFiniteLoss("the gradient is not finite")
        scaler.step(self.optimiser)
        scaler.update()


@contextmanager
def _restored_state(regulariser: Regulariser | None) -> Iterator[None]:
    """A running centre is updated by the steps, not by the ascent of the weights in them."""
    before = {} if regulariser is None else regulariser.state()
    try:
        yield
    finally:
        if regulariser is not None:
            regulariser.load_state(before)


def _of_all(numbers: Numbers) -> Numbers:
    """The mean over processes, each of which saw its own part of the batch."""
    if world_size() == 1:
        return numbers
    means = torch.stack(list(numbers.values()))
    dist.all_reduce(means)
    return dict(zip(numbers, means / world_size(), strict=True))


def _accuracies(base: Loss, y: Tensor) -> Numbers:
    """The share of right answers in the batch, clean and attacked, where they were computed."""
    if y.is_floating_point():
        return {}
    outputs = {"clean": base.clean, "attacked": base.attacked}
    return {
        name: (logits.detach().argmax(1) == y).float().mean()
        for name, logits in outputs.items()
        if logits is not None
    }


def gradient_ratio(
    learner: Learner, x: Tensor, y: Tensor, s: Tensor | None, generator: torch.Generator
) -> float:
    """‖∇_θ L_base‖ / ‖∇_θ R‖ on one batch: λ = ρ times this makes the two ρ : 1.

    Of a batch that is taken in parts, on the first of them, since the whole may not fit in memory.
    """
    module, objective, regulariser = learner.module, learner.objective, learner.regulariser
    assert regulariser is not None
    first = slice(-(-len(x) // learner.parts))
    x, y, s = x[first], y[first], None if s is None else s[first]
    moved = objective.attack(module, x, y, generator=generator)
    with restored_buffers(module):
        base = gradient_norm(module, objective.loss(module, x, y, moved).total)
    regulariser.eval()  # R of the whole batch
    penalty = gradient_norm(module, regulariser(module, x, y, s))
    regulariser.train()
    return base / penalty if penalty > 0 else 0.0


def gradient_norm(model: nn.Module, value: Tensor) -> float:
    """‖∇_θ value‖ over all parameters, of the mean over processes."""
    if not value.requires_grad:
        return 0.0
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    if world_size() > 1:
        dist.all_reduce(flat)
        flat /= world_size()
    return float(flat.norm())
