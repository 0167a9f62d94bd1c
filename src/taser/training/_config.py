"""The sections of a recipe, each a frozen dataclass whose fields are checked."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator
from pydantic.dataclasses import dataclass

from taser._names import hint
from taser._settings import SETTINGS, Count, NotNegative, Number, Positive, Share, Whole
from taser.attacks import Norm
from taser.objectives import OBJECTIVES
from taser.objectives._objective import Task
from taser.regularisers import REGULARISERS
from taser.regularisers._gradients import Of, Size
from taser.regularisers._taser import FORMS, FormName
from taser.scores._score import Precision
from taser.stein._batchnorm import Statistics
from taser.stein._checks import Backend, Operator
from taser.stein._penalty import CenterName


def _one_of(registry: Mapping[str, Any], *others: str) -> Any:
    """A name in the registry, which may have grown since import, or one of `others`."""

    def check(name: str) -> str:
        if name not in (names := [*others, *registry]):
            near = hint(name, names)
            raise ValueError(f"should be one of {', '.join(names)}; got {name!r}{near}")
        return name

    return AfterValidator(check)


@dataclass(frozen=True, config=SETTINGS)
class DataConfig:
    """The data set and how it is prepared.

    examples: size of a random training subset, drawn with `seed` (None: all). validation: the share
    of the training part that is held out. augment: "auto" crops and flips CIFAR-10 only; padding:
    pixels around an image before the crop. size: side to which a folder's images are resized. For
    tables: target is the column to predict, ignore lists columns to leave out, and task replaces
    the guess from the target. extra: an .npz of more images, generated or pseudo-labelled, that
    make up `extra_share` of every batch.
    """

    name: str = "digits"
    examples: Count | None = None
    validation: Share = 0.1
    augment: Literal["auto", "none", "crop", "crop_and_flip"] = "auto"
    padding: Whole = 4
    size: Count | None = None
    target: str | None = None
    ignore: tuple[str, ...] = ()
    task: Task | None = None
    extra: str | None = None
    extra_share: Share = 0.7
    seed: Whole = 0


@dataclass(frozen=True, config=SETTINGS)
class ModelConfig:
    """The network.

    name: a built-in network, "package.module:callable" or "file.py:callable"; "auto" is a small CNN
    for images and an MLP for vectors. weights: a file with the state dict to start from; outputs:
    what the single output of a binary classifier means: logit or probability. options: further
    keyword arguments of the network. freeze_norm: keep BatchNorm in evaluation mode with its
    statistics, which suits short fine-tuning.
    """

    name: str = "auto"
    width: Count | None = None
    activation: Literal["relu", "silu", "softplus"] | None = None
    weights: str | None = None
    outputs: Literal["logits", "logit", "probability"] = "logits"
    freeze_norm: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=SETTINGS)
class ObjectiveConfig:
    """The base method and its attack.

    norm, epsilon, steps, step_size: set the PGD attack, the only one in training; step_size None is
    2.5·epsilon/steps, or 1.25·epsilon for the single step of fast. threat: for a table, arguments
    of :meth:`taser.Threat.for_table` by the names of columns, such as {epsilon: {age: 5}, fixed:
    [sex], integer: [age], bounds: {age: [17, 90]}}. beta: weight of the KL in TRADES; mart_weight:
    the same in MART; sigma: noise level of gaussian. label_smoothing: in the cross-entropy. awp:
    perturb the weights by awp_gamma times their norm from epoch `awp_start` on. options: further
    arguments of the objective's constructor.
    """

    name: Annotated[str, _one_of(OBJECTIVES)] = "standard"
    norm: Norm = "linf"
    epsilon: NotNegative = 8 / 255
    threat: dict[str, Any] = field(default_factory=dict)
    steps: Count = 10
    step_size: NotNegative | None = None
    beta: NotNegative = 6.0
    mart_weight: NotNegative = 5.0
    sigma: Positive = 0.25
    label_smoothing: Share = 0.0
    awp: bool = False
    awp_gamma: NotNegative = 0.005
    awp_start: Whole = 10
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step_size is not None and self.step_size >= 1 > self.epsilon and not self.threat:
            step, most = self.step_size, f"is far more than epsilon={self.epsilon:g}"
            raise ValueError(f"objective.step_size={step:g} {most}; did you mean {step:g}/255?")


# Keys of earlier versions with their values, None for any, and what replaced them.
REPLACED: dict[tuple[str, str | None], str] = {
    ("at", None): "form", **{("unit", kind): "form" for kind in ("raw", "noise", "ball", "paper")},
    ("unit", "ratio"): "target_loss", ("name", "gradient"): "name=gradient-norm",
}  # fmt: skip
UNUSED = {"cache": None, "unit": "form"}  # keys in run folders of earlier versions


@dataclass(frozen=True, config=SETTINGS)
class RegulariserConfig:
    """What is added to the loss: TASER, a gradient penalty, or nothing.

    form: form of :class:`taser.Taser`; it fixes operator, points, centre and the unit of `weight`.
    weight: λ, in the form's unit. target_loss: the training loss that is accepted; λ then starts at
    `weight`, without a ramp, and rises while the loss is below it: see
    :class:`taser.regularisers.TargetLoss`. ramp: the share of training over which λ grows from
    zero. norm, of: arguments of :class:`taser.regularisers.GradientNorm`. every, fraction: compute
    the penalty in each k-th step only, and on a random part of the batch, which keeps the expected
    gradient and makes it noisier (None: the form's default).

    score: "auto" (a shipped denoiser, or a Gaussian for vectors), "gaussian", or what
    :func:`taser.scores.named` takes: a file written by `taser score fit`, "diffusers:NAME", or a
    function, "file.py:function". Its noise level is `sigma` in the data's units, or `timestep` of
    the DDPM schedule. precision: of the score network; "auto" is bfloat16 where the hardware has
    it, for half the time.

    operator, center: replace the form's operator or centre, for studies. options: further
    arguments of the regulariser's constructor.
    """

    name: Annotated[str, _one_of(REGULARISERS, "none")] = "none"
    form: FormName = "steepest"
    weight: NotNegative = 0.3
    target_loss: Positive | None = None
    ramp: Share = 0.1
    norm: Size = "l2"
    of: Of = "margin"
    operator: Operator | None = None
    center: CenterName | None = None
    backend: Literal["auto", Backend] = "auto"
    probes: int = 1
    step: Number | None = None
    unbiased: bool = False
    batchnorm: Statistics = "auto"
    every: int | None = None
    fraction: Number | None = None
    score: str = "auto"
    timestep: int = 50
    sigma: Number | None = None
    precision: Precision | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _refuse_replaced_keys(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        gone = ", ".join(
            f"regulariser.{key}={given[key]} was replaced by regulariser.{by}"
            for (key, value), by in REPLACED.items()
            if key in given and value in (None, given[key])
        )
        if gone:
            raise ValueError(f"{gone} (a form fixes points, operator, centre and unit together)")
        if given.get("cache") is not None:
            raise ValueError("regulariser.cache is gone, since cached scores saved little time")
        return {k: v for k, v in given.items() if k not in UNUSED or v != UNUSED[k]}


@dataclass(frozen=True, config=SETTINGS)
class OptimiserConfig:
    """Adam as in the paper, or SGD with Nesterov's momentum."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    rate: NotNegative = 1e-3
    betas: tuple[Number, Number] = (0.9, 0.999)
    momentum: Share = 0.9
    weight_decay: NotNegative = 1e-4
    clip: Positive | None = None


@dataclass(frozen=True, config=SETTINGS)
class ScheduleConfig:
    """The learning rate over training.

    warmup: the share of training over which the rate grows to its maximum. final: for "cosine" and
    "linear", the last rate divided by the maximum. milestones, factor: for "step", the rate is
    multiplied by the factor after these shares of training.
    """

    name: Literal["cosine", "linear", "step", "constant"] = "cosine"
    warmup: Share = 0.0
    final: Share = 0.0
    milestones: tuple[Share, ...] = (0.5, 0.75)
    factor: Share = 0.1


@dataclass(frozen=True, config=SETTINGS)
class TeacherConfig:
    """weight: α of α·KL(f_θ0 ‖ f_θ), where θ0 are the initial weights; zero for no teacher."""

    weight: NotNegative = 0.0


@dataclass(frozen=True, config=SETTINGS)
class ValidationConfig:
    """How the best weights are chosen on held-out data.

    select: by accuracy under a short PGD ("robust") or without an attack ("clean"); the other
    accuracy breaks ties, then the later weights are kept. "auto" is robust for adversarial methods
    and clean for standard training, whose first epochs are the most robust and least accurate.
    "last" keeps the last weights. every: epochs between two validations; examples: size of the
    validation subset; steps: of the attack; patience: stop after this many validations without
    an improvement (None: never).
    """

    select: Literal["auto", "robust", "clean", "last"] = "auto"
    every: Count = 1
    examples: Count = 512
    steps: Count = 10
    patience: Count | None = None

    def __post_init__(self) -> None:
        if self.select == "last" and self.patience is not None:
            raise ValueError("validation.patience cannot be combined with select=last")


Tracker = Literal[
    "tensorboard", "wandb", "mlflow", "trackio", "comet_ml", "aim", "clearml", "dvclive", "swanlab"
]  # the trackers of Accelerate


@dataclass(frozen=True, config=SETTINGS)
class LoopConfig:
    """Duration, hardware and speed.

    accumulate: the number of micro-batches in a batch, to save memory. precision: "auto"
    is bfloat16 on a GPU that supports it, else float32. fold: attack a copy of the network with
    BatchNorm folded into the convolutions, which is faster. ema: decay of the averaged weights that
    are validated and kept (0: none). save_minutes: minutes between checkpoints. device:
    "auto" is Accelerate's choice. track: where the log goes beside log.jsonl.
    """

    epochs: Count = 200
    batch: Count = 256
    accumulate: Count = 1
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    channels_last: bool = True
    fold: bool = True
    ema: Share = 0.0
    seed: Whole = 0
    save_minutes: NotNegative = 5.0
    device: Literal["auto", "cpu"] = "auto"
    threads: Whole | None = None
    track: Tracker | None = None


@dataclass(frozen=True, config=SETTINGS)
class Config:
    """One run. By default standard training on digits with the paper's optimiser."""

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
        self.check_micro_batches(self.loop.batch)

    def check_micro_batches(self, batch: int) -> None:
        """Raise if a micro-batch is one example, whose penalty has no variance."""
        parts, penalty = self.loop.accumulate, self.regulariser
        center = penalty.center or FORMS[penalty.form].center
        single = parts > 1 and batch < 2 * parts
        if single and penalty.name == "taser" and center == "batch":
            found = f"loop.accumulate={parts} leaves single examples of a batch of {batch}"
            raise ValueError(f"{found}, and the variance that TASER penalises needs two")
