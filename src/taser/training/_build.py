"""Builds everything that a configuration names, on its device."""

import copy
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from taser import attacks
from taser._names import unknown
from taser._runtime import WEIGHTS, combine_seeds, world_size
from taser.attacks import Threat
from taser.data import Batches, CropAndFlip, Dataset, Split, load
from taser.data._load import hold_out, read_extra
from taser.models import load_model
from taser.models._copies import EMA, supports_channels_last
from taser.objectives import OBJECTIVES, Objective, one_step_pgd
from taser.probes import Output
from taser.regularisers import REGULARISERS, Regulariser
from taser.scores import Gaussian, Score, named, pretrained
from taser.scores._adapters import SHIPPED

from ._config import (
    Config,
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimiserConfig,
    RegulariserConfig,
)
from ._step import AttackView, Learner, Precision

T = TypeVar("T")
FEATURE_SIGMA = 1.0  # noise level for standardised features, whose standard deviation is 1


def build_data(config: DataConfig, root: Path | None = None) -> Dataset:
    """The data set. If `examples` is set, a class-balanced subset of about that size."""
    dataset = load(
        config.name, root=root, validation=config.validation, seed=config.seed, size=config.size,
        target=config.target, ignore=config.ignore, task=config.task,
    )  # fmt: skip
    n, k = len(dataset.train), config.examples
    if k is None or k == n:
        return dataset
    if k > n:
        raise ValueError(f"data.examples should be at most {n}; got {k} (data.examples=null: all)")
    labels = dataset.train.y.numpy() if dataset.classes else None
    taken = hold_out(n, k / n, seed=(config.seed, 1), labels=labels, name=dataset.name)
    rows = torch.from_numpy(taken.nonzero()[0])
    return replace(dataset, train=Split(dataset.train.stored[rows], dataset.train.y[rows]))


def build_augmentation(config: DataConfig, dataset: Dataset) -> CropAndFlip | None:
    """The augmentation of the recipe; "auto" is crops and flips for CIFAR-10, else nothing."""
    kind = config.augment
    if kind == "auto":
        kind = "crop_and_flip" if dataset.name == "cifar10" else "none"
    if kind == "none":
        return None
    if not dataset.train.is_images:
        raise ValueError(f"data.augment={kind} is for images; {dataset.name} holds vectors")
    return CropAndFlip(config.padding, flip=kind == "crop_and_flip")


def describe_network(config: ModelConfig, dataset: Dataset) -> dict[str, Any]:
    """The network's name, shapes and options, as in model.json.

    A built-in network normalises its inputs by the training part's mean and standard deviation.
    """
    images = dataset.train.is_images
    name = ("cnn" if images else "mlp") if config.name == "auto" else config.name
    options = dict(config.options)
    if ":" not in name:  # a built-in one takes these
        given = {"width": config.width, "activation": config.activation}
        options |= {key: value for key, value in given.items() if value is not None}
        if images:
            # `.x` caches a float copy; `.rows()` does not.
            std, mean = torch.std_mean(dataset.train.rows(slice(None)), (0, 2, 3))
            options.setdefault("mean", mean.tolist())
            options.setdefault("std", std.clamp_min(1e-3).tolist())
    elif config.width is not None or config.activation is not None:
        use = "use model.options for a function of yours"
        raise ValueError(f"model.width and model.activation are for built-in networks; {use}")
    classes = len(dataset.classes) if dataset.classes else 1
    found = {"name": name, "classes": classes, "shape": dataset.input_shape, "options": options}
    if config.outputs == "logits":
        return found
    if classes != 2:
        raise ValueError(f"model.outputs={config.outputs} is for two classes; there are {classes}")
    return {**found, "outputs": config.outputs}


def build_model(architecture: dict[str, Any], weights: Path | None = None) -> nn.Module:
    """The network of a model.json, in eval mode, with these weights or random ones."""
    name, classes = architecture["name"], architecture["classes"]
    shape, options = tuple(architecture["shape"]), architecture["options"]
    outputs = architecture.get("outputs")
    return load_model(name, weights, classes=classes, shape=shape, outputs=outputs, **options)


def build_optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD with Nesterov's momentum, over the parameters that require gradients."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters to train")
    options: dict[str, Any] = {"lr": config.rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        momentum = config.momentum
        return torch.optim.SGD(parameters, momentum=momentum, nesterov=momentum > 0, **options)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, betas=config.betas, **options)


def build_threat(config: ObjectiveConfig, dataset: Dataset) -> Threat:
    """The ball that the attacks search; pixels stay in [0, 1], features are free."""
    if not (config.threat or dataset.categorical):
        return Threat(config.norm, config.epsilon, *dataset.train.box)
    options = {"epsilon": config.epsilon, **config.threat}
    accepted = signature(Threat.for_table).parameters.keys() - {"dataset", "norm"}
    for option in options.keys() - accepted:
        raise unknown("option of objective.threat", option, sorted(accepted))
    return Threat.for_table(dataset, norm=config.norm, **options)


def build_objective(config: ObjectiveConfig, dataset: Dataset) -> Objective:
    """The base method. Adversarial weight perturbation is applied by Learner.step."""
    kind = OBJECTIVES[config.name]
    accepted, threat = signature(kind).parameters, build_threat(config, dataset)
    if dataset.task == "regression" and "task" not in accepted:
        raise ValueError(f"{config.name} compares class probabilities; for regression use pgd")
    inner = attacks.PGD(threat, config.steps, config.step_size, kind.start)
    given = {
        "inner": one_step_pgd(threat, config.step_size) if kind.one_step else inner,
        "task": dataset.task, "label_smoothing": config.label_smoothing,
        **{parameter: getattr(config, key) for parameter, key in kind.keys.items()},
    }  # fmt: skip
    return _construct(kind, given, config.options, "objective")


def _construct(kind: type[T], given: dict[str, Any], options: dict[str, Any], section: str) -> T:
    """kind(…). Every RegulariserConfig field whose name is a constructor parameter is passed."""
    accepted = dict(signature(kind).parameters)
    if any(p.kind is Parameter.VAR_KEYWORD for p in accepted.values()):  # for Regulariser
        accepted |= signature(Regulariser).parameters
    for option in options:
        if option not in accepted:
            raise unknown(f"option of this {section}", option, accepted)
    return kind(**{name: value for name, value in given.items() if name in accepted} | options)


def build_score(config: RegulariserConfig, dataset: Dataset) -> Score:
    """The score of the training inputs, at a noise level."""
    if config.score == "gaussian" or (config.score == "auto" and not dataset.train.is_images):
        gaussian = Gaussian.fit(dataset.train.rows(slice(None)))
        if config.form == "paper":
            return gaussian
        return gaussian.at(sigma=FEATURE_SIGMA if config.sigma is None else config.sigma)
    if config.score == "auto" and dataset.name not in SHIPPED:
        fit = f"`taser score fit --data {dataset.name} --out score.safetensors`"
        give = "give regulariser.score=score.safetensors (or ffdnet, for colour photographs)"
        raise ValueError(f"no score model ships for {dataset.name}: fit one with {fit} and {give}")
    denoiser = pretrained(dataset.name) if config.score == "auto" else named(config.score)
    level = {"timestep": config.timestep} if config.sigma is None else {"sigma": config.sigma}
    score = denoiser.at(**level)
    if config.precision is not None:
        score.precision = config.precision
    try:
        score(dataset.train.rows(slice(2)))
    except (RuntimeError, TypeError, IndexError) as error:  # of a user's network
        inputs = f"the inputs of {dataset.name}, of shape {dataset.input_shape}"
        raise ValueError(
            f"regulariser.score={config.score} does not take {inputs}: {error}"
        ) from error
    return score


def build_regulariser(
    config: RegulariserConfig, dataset: Dataset, threat: Threat, generator: torch.Generator
) -> Regulariser | None:
    """TASER or a gradient penalty; its random numbers come from `generator`."""
    if config.name == "none":
        return None
    kind = REGULARISERS[config.name]
    given = {k: v for k, v in vars(config).items() if v is not None and k != "options"} | {
        "projections": config.probes, "threat": threat, "generator": generator,
        "probe": Output() if dataset.task == "regression" else None,
    }  # fmt: skip
    if "score" in signature(kind).parameters:
        given["score"] = build_score(config, dataset)
    return _construct(kind, given, config.options, "regulariser")


@dataclass
class Setup:
    """The parts of a run. attack: for validation; generator: for the regulariser's random draws."""

    config: Config
    dataset: Dataset
    architecture: dict[str, Any]
    batches: Batches
    learner: Learner
    ema: EMA | None
    attack: attacks.PGD
    generator: torch.Generator
    device: torch.device
    rank: int
    layout: torch.memory_format

    @property
    def steps(self) -> int:
        """Steps in the whole run."""
        return self.config.loop.epochs * len(self.batches)

    @property
    def evaluated(self) -> nn.Module:
        """The network that is validated and kept: the EMA, if there is one."""
        return self.ema.model if self.ema else self.learner.module


def set_up(config: Config, dataset: Dataset | None = None) -> Setup:
    """Build the parts of a run; the initial weights depend on the configuration only.

    With a regulariser, TF32 is switched off in cuDNN for the whole process; `loop.threads` sets
    torch's threads. dataset: replaces the one that the configuration names.
    """
    loop, base = config.loop, config.objective
    if loop.threads:
        torch.set_num_threads(loop.threads)
    # Buffers are not broadcast between the forwards of one step, which would change them in place.
    several = DistributedDataParallelKwargs(broadcast_buffers=False)
    # The learner handles precision, whatever `accelerate launch` says. Without an accelerator,
    # several processes get different ranks only with cpu=True.
    cpu = loop.device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[several])
    device = accelerator.device

    dataset = dataset or build_data(config.data)
    architecture = describe_network(config.model, dataset)
    torch.manual_seed(combine_seeds(loop.seed, WEIGHTS))
    weights = Path(config.model.weights).expanduser() if config.model.weights else None
    model = build_model(architecture, weights).train().to(device)
    for module in model.modules():
        if config.model.freeze_norm and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    last = loop.channels_last and dataset.train.is_images
    fits = last and supports_channels_last(model, device.type)
    layout = torch.channels_last if fits else torch.contiguous_format
    model = model.to(memory_format=layout)  # type: ignore[call-overload]

    threat, generator = build_threat(base, dataset), torch.Generator(device)
    objective = build_objective(base, dataset)
    regulariser = build_regulariser(config.regulariser, dataset, threat, generator)
    if regulariser is not None:
        regulariser.to(device)
        # TF32 rounding would dominate the difference, so TF32 is switched off. Attack and loss
        # usually run in bfloat16 and are not slowed.
        torch.backends.cudnn.allow_tf32 = False
    if config.teacher.weight and dataset.task == "regression":
        raise ValueError("teacher.weight is for classifiers: it compares class probabilities")
    teacher = copy.deepcopy(model).eval().requires_grad_(False) if config.teacher.weight else None
    learner = Learner(
        model, objective, build_optimiser(model, config.optimiser),
        Precision(loop.precision, device), AttackView(loop.fold), regulariser,
        teacher=teacher, teacher_weight=config.teacher.weight, awp_gamma=base.awp_gamma,
        clip=config.optimiser.clip, accumulate=loop.accumulate,
    )  # fmt: skip

    size = min(loop.batch, len(dataset.train))
    if size % (n := world_size()):
        raise ValueError(f"loop.batch={size} is shared by {n} processes: use a multiple of {n}")
    config.check_micro_batches(size // world_size())
    extra = config.data.extra and read_extra(Path(config.data.extra).expanduser(), dataset)
    batches = Batches(
        dataset.train.to(device), size, seed=loop.seed, extra=extra.to(device) if extra else None,
        extra_share=config.data.extra_share, augment=build_augmentation(config.data, dataset),
        smallest=2 * world_size() * loop.accumulate,  # two rows per process and micro-batch
    )  # fmt: skip
    ema = EMA(model, loop.ema) if loop.ema else None
    learner.model = accelerator.prepare_model(model)
    return Setup(
        config, dataset, architecture, batches, learner, ema,
        attacks.PGD(threat, config.validation.steps), generator, device,
        accelerator.process_index, layout,
    )  # fmt: skip
