"""What changes over training: the learning rate and the regulariser's weight."""

import math
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal


def check_positive(section: str, **counts: int) -> None:
    """Raise for a count below one."""
    for key, count in counts.items():
        if count < 1:
            raise ValueError(f"{section}.{key} should be at least 1; got {count}")


def check_not_negative(section: str, **values: float) -> None:
    """Raise for what is negative, infinite or NaN."""
    for key, value in values.items():
        if not 0 <= value < inf:
            raise ValueError(f"{section}.{key} should be zero or more; got {value}")


def check_shares(section: str, **shares: float) -> None:
    """Raise for what lies outside of [0, 1]."""
    for key, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{section}.{key} is a share, from 0 to 1; got {share}")


Method = Literal["standard", "pgd", "trades", "mart"]


@dataclass(frozen=True)
class DataConfig:
    """Which examples. examples: use about so many for training, drawn once by `seed` (None: all).

    size: of a folder's images, resized; target, ignore, task: of a table, the column to predict,
    columns to leave out, and what it is where that should not be guessed. augment "auto" crops and
    flips CIFAR-10 and leaves everything else alone.
    """

    name: str = "digits"
    examples: int | None = None
    validation: float = 0.1
    augment: Literal["auto", "none", "crop", "crop_and_flip"] = "auto"
    padding: int = 4
    size: int | None = None
    target: str | None = None
    ignore: tuple[str, ...] = ()
    task: Literal["classification", "regression"] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("data", examples=1 if self.examples is None else self.examples)
        check_not_negative("data", seed=self.seed)


@dataclass(frozen=True)
class ModelConfig:
    """Which network: a built-in name, "package.module:callable" or "file.py:callable".

    "auto" takes a small CNN for images and an MLP for vectors. weights: a state dict to begin
    with; options: further keyword arguments of the architecture. freeze_norm: BatchNorm keeps its
    statistics and stays in evaluation mode, as is right for short fine-tuning.
    """

    name: str = "auto"
    width: int | None = None
    activation: Literal["relu", "silu", "softplus"] | None = None
    weights: str | None = None
    freeze_norm: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectiveConfig:
    """The base method. beta is TRADES's, mart_weight MART's, label_smoothing standard's and pgd's.

    step_size: of the attack; None is 2.5·epsilon/steps.
    awp wraps the method after `awp_start` epochs. awp_with_penalty: whether the regulariser takes
    part in the ascent of the weights. By default it does not, so that AWP is the published one.
    """

    name: Method = "standard"
    norm: Literal["linf", "l2"] = "linf"
    epsilon: float = 8 / 255
    steps: int = 10
    step_size: float | None = None
    beta: float = 6.0
    mart_weight: float = 5.0
    label_smoothing: float = 0.0
    awp: bool = False
    awp_gamma: float = 0.005
    awp_start: int = 10
    awp_with_penalty: bool = False

    def __post_init__(self) -> None:
        check_not_negative(
            "objective", epsilon=self.epsilon, step_size=self.step_size or 0.0, beta=self.beta,
            mart_weight=self.mart_weight, awp_gamma=self.awp_gamma, awp_start=self.awp_start,
        )  # fmt: skip
        check_positive("objective", steps=self.steps)
        check_shares("objective", label_smoothing=self.label_smoothing)
        if self.step_size is not None and self.step_size >= 1 > self.epsilon:
            raise ValueError(
                f"objective.step_size={self.step_size:g} is far more than epsilon="
                f"{self.epsilon:g}; did you mean {self.step_size:g}/255?"
            )


@dataclass(frozen=True)
class RegulariserConfig:
    """What is added to the loss: TASER, a gradient penalty, or nothing.

    form
        Of :class:`taser.Taser`; it fixes operator, points, centre and the unit of `weight`.
    weight, unit
        λ, in the form's unit. With unit "ratio", λ is such that the gradient of λR is `weight`
        times that of the base loss, measured while λ ramps up.
    ramp
        The share of training over which λ grows from zero.
    norm, of
        Of :class:`taser.regularisers.GradientNorm`.
    every, fraction
        Compute the penalty in each k-th step only, and on a random part of the batch: a quarter
        costs a quarter, keeps the expected gradient and makes it noisier.
    score
        "auto" (a shipped denoiser, or a Gaussian for vectors), "gaussian", or what
        :func:`taser.scores.named` takes: a file written by `taser score fit`, "diffusers:NAME", or
        a function, "file.py:function". Its noise level is `sigma` in the data's units, or
        `timestep` of the DDPM schedule.
    precision
        Of the score's network: "auto" is bfloat16 where the hardware has it, for half the time;
        None leaves it as the score is.
    cache
        A folder that `taser score cache` wrote with this score for these data, for form "paper"
        without augmentation: the scores are read instead of computed.
    operator, center, replaced
        For studies: another operator or centre than the form's; the score of "shuffled" images or
        "white" directions instead of a denoiser's own.
    """

    name: Literal["none", "taser", "gradient-norm", "jacobian"] = "none"
    form: Literal["steepest", "paired", "noised", "mixed", "paper"] = "steepest"
    weight: float = 0.3
    unit: Literal["form", "ratio"] = "form"
    ramp: float = 0.1
    norm: Literal["l1", "l2"] = "l2"
    of: Literal["margin", "loss"] = "margin"
    operator: Literal["langevin", "first_order"] | None = None
    center: Literal["batch", "running", "none"] | None = None
    backend: Literal["auto", "difference", "reverse", "piecewise_linear", "exact"] = "auto"
    probes: int = 1
    step: float | None = None
    unbiased: bool = False
    batchnorm: Literal["auto", "running"] = "auto"
    every: int = 1
    fraction: float = 1.0
    score: str = "auto"
    timestep: int = 50
    sigma: float | None = None
    precision: Literal["float32", "bfloat16", "auto"] | None = None
    replaced: Literal["none", "shuffled", "white"] = "none"
    cache: str | None = None

    def __post_init__(self) -> None:
        check_shares("regulariser", ramp=self.ramp)
        check_not_negative("regulariser", weight=self.weight)

    @property
    def centred_by_batch(self) -> bool:
        """Whether residuals are centred by the mean of their own batch."""
        by_form = "none" if self.form == "steepest" else "batch"
        return self.name == "taser" and (self.center or by_form) == "batch"


@dataclass(frozen=True)
class OptimiserConfig:
    """Adam as in the paper, or SGD with Nesterov's momentum."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float | None = None

    def __post_init__(self) -> None:
        check_not_negative("optimiser", rate=self.rate, weight_decay=self.weight_decay)
        if self.clip is not None and not self.clip > 0:
            raise ValueError(
                f"optimiser.clip should be positive, or null for none; got {self.clip}"
            )
        check_shares("optimiser", momentum=self.momentum)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over training; warm-up and milestones are shares of it.

    final: the rate at the end as a share of the highest, for "cosine" and "linear".
    """

    name: Literal["cosine", "linear", "step", "constant"] = "cosine"
    warmup: float = 0.0
    final: float = 0.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_shares("schedule", warmup=self.warmup, final=self.final)
        for milestone in self.milestones:
            check_shares("schedule", milestones=milestone)


@dataclass(frozen=True)
class TeacherConfig:
    """α of α·KL(f_θ0 ‖ f_θ), with θ0 the weights that training began with. Zero: no teacher."""

    weight: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("teacher", weight=self.weight)


@dataclass(frozen=True)
class ValidationConfig:
    """Which checkpoint is best, by its figures on held-out data.

    select: by the accuracy under a short PGD, "robust", or by the "clean" one; "auto" takes robust
    for adversarial methods and clean for standard training, whose first epochs are its most robust
    and its least useful; ties go by the other figure, then to the later. "last" takes the weights
    of the end whatever their figures, as papers without a validation part do. every: epochs;
    examples: how many of the validation part; steps: of the attack; patience: stop after so many
    validations in which the chosen figure did not rise (None: never).
    """

    select: Literal["auto", "robust", "clean", "last"] = "auto"
    every: int = 1
    examples: int = 512
    steps: int = 10
    patience: int | None = None

    def __post_init__(self) -> None:
        patience = 1 if self.patience is None else self.patience
        check_positive(
            "validation", every=self.every, examples=self.examples, steps=self.steps,
            patience=patience,
        )  # fmt: skip
        if self.select == "last" and self.patience is not None:
            raise ValueError("validation.patience needs a figure to wait for: select says last")


@dataclass(frozen=True)
class LoopConfig:
    """How long, in which pieces, in which precision.

    accumulate: each batch is taken in so many parts, to save memory. precision "auto" is bfloat16
    where the hardware has it on a GPU, float32 otherwise. ema: decay of the averaged weights that
    are validated and kept as best (0: none). save_minutes: between checkpoints inside an epoch.
    device "auto" is what Accelerate finds. fold: attack with BatchNorm folded into convolutions,
    which is the same function and faster. compile: have torch.compile make the attacked network
    faster still, which takes a C++ compiler and up to a minute at the start.
    """

    epochs: int = 200
    batch: int = 256
    accumulate: int = 1
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    channels_last: bool = True
    fold: bool = True
    compile: bool = False
    ema: float = 0.0
    seed: int = 0
    save_minutes: float = 5.0
    device: Literal["auto", "cpu"] = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_positive("loop", epochs=self.epochs, batch=self.batch, accumulate=self.accumulate)
        check_shares("loop", ema=self.ema)
        check_not_negative("loop", seed=self.seed)


@dataclass(frozen=True)
class Config:
    """One run. By default on digits, with the paper's optimiser and attack and our regulariser."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    regulariser: RegulariserConfig = field(default_factory=RegulariserConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)

    def __post_init__(self) -> None:
        self.check_pieces(self.loop.batch)

    def check_pieces(self, batch: int) -> None:
        """Raise if a batch of so many is taken in pieces that have no variance."""
        if (
            self.regulariser.centred_by_batch
            and self.loop.accumulate > 1
            and batch < 2 * self.loop.accumulate
        ):
            raise ValueError(
                f"loop.accumulate={self.loop.accumulate} leaves single examples of a batch of "
                f"{batch}, and the variance that TASER penalises needs two"
            )


def learning_rate(step: int, steps: int, highest: float, config: ScheduleConfig) -> float:
    """η at step 0 ≤ t < T: a linear warm-up, then the schedule.

    Cosine: η_min + ½(η_max − η_min)(1 + cos(π (t − T_w)/(T − T_w))), as the paper fine-tunes.
    """
    warm = config.warmup * steps
    if step < warm:
        return highest * min(1.0, (step + 1) / warm)
    done = (step - warm) / max(1.0, steps - warm)
    lowest = config.final * highest
    if config.name == "cosine":
        return lowest + 0.5 * (highest - lowest) * (1 + math.cos(math.pi * done))
    if config.name == "linear":
        return highest + (lowest - highest) * done
    if config.name == "step":
        return highest * config.factor ** sum(step >= mark * steps for mark in config.milestones)
    return highest


def ramp(step: int, steps: int, share: float) -> float:
    """min(1, t/T_w), which λ is multiplied with; T_w the given share of training."""
    return 1.0 if share <= 0 else min(1.0, step / max(1.0, share * steps))
