"""From a configuration to the things it names."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taser import attacks, objectives
from taser.attacks import Threat
from taser.attacks.threat import Norm
from taser.data import CropAndFlip, Dataset, Split, load
from taser.data.holdout import hold_out
from taser.models import load_model
from taser.objectives import GradientPenalty, JacobianPenalty, Objective, Regulariser, Taser
from taser.probes import Output
from taser.scores import Gaussian, Replaced, Score, named, pretrained
from taser.scores.pretrained import SHIPPED
from taser.stein import SteinPenalty

from .config import DataConfig, ModelConfig, ObjectiveConfig, RegulariserConfig

PIXELS_PER_UNIT = 2.0  # u = 2x − 1 are the coordinates of a diffusion model


def load_data(config: DataConfig, root: Path | None = None) -> Dataset:
    """The whole data set that a recipe names, in its splits."""
    return load(
        config.name, root=root, validation=config.validation, seed=config.seed, size=config.size,
        target=config.target, ignore=config.ignore, task=config.task,
    )  # fmt: skip


def build_data(config: DataConfig) -> Dataset:
    """The data set, with about `examples` of its training part if so many are asked for.

    Of each class the same share, in whole examples: in ten classes it may be a few more or less.
    """
    dataset = load_data(config)
    if config.examples is None or config.examples == len(dataset.train):
        return dataset
    n = len(dataset.train)
    if config.examples > n:
        raise ValueError(
            f"data.examples should be at most {n}; got {config.examples} (data.examples=null: all)"
        )
    labels = dataset.train.y.numpy() if dataset.classes else None
    taken = hold_out(n, config.examples / n, seed=(config.seed, 1), labels=labels)
    rows = torch.from_numpy(taken.nonzero()[0])
    return replace(dataset, train=Split(dataset.train.stored[rows], dataset.train.y[rows]))


def build_augmentation(config: DataConfig, dataset: Dataset) -> CropAndFlip | None:
    """Crops and flips, where they are asked for or known to be right."""
    auto = "crop_and_flip" if dataset.name == "cifar10" else "none"
    kind = auto if config.augment == "auto" else config.augment
    if kind == "none":
        return None
    if not dataset.train.is_images:
        raise ValueError(f"data.augment={kind} is for images; {dataset.name} holds vectors")
    return CropAndFlip(config.padding, flip=kind == "crop_and_flip")


@dataclass(frozen=True)
class Architecture:
    """What a network is built from, in words: kept beside its weights.

    >>> Architecture("mlp", classes=3, shape=(4,), options={"width": 8}).build().head
    Linear(in_features=8, out_features=3, bias=True)
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    options: dict[str, Any]

    def build(self, weights: Path | None = None) -> nn.Module:
        """The network, in evaluation mode, with these weights or random ones."""
        return load_model(
            self.name, weights, classes=self.classes, shape=tuple(self.shape), **self.options
        )


def architecture(config: ModelConfig, dataset: Dataset) -> Architecture:
    """The network that a configuration names; a built-in one normalises by the training part."""
    images = dataset.train.is_images
    name = ("cnn" if images else "mlp") if config.name == "auto" else config.name
    options = dict(config.options)
    if ":" not in name:  # a built-in one: it takes these, a stranger need not
        given = {"width": config.width, "activation": config.activation}
        options |= {key: value for key, value in given.items() if value is not None}
        if images:
            # By `rows`, which keeps nothing: `x` would stay, at four times the bytes of images.
            std, mean = torch.std_mean(dataset.train.rows(slice(None)), (0, 2, 3))
            options.setdefault("mean", mean.tolist())
            options.setdefault("std", std.clamp_min(1e-3).tolist())
    elif config.width is not None or config.activation is not None:
        raise ValueError(
            "model.width and model.activation are for the built-in networks; give your own "
            "function its arguments by model.options"
        )
    classes = len(dataset.classes) if dataset.classes else 1
    return Architecture(name, classes, dataset.input_shape, options)


def build_threat(config: ObjectiveConfig, dataset: Dataset) -> Threat:
    """The ball that the attacks search; pixels stay in [0, 1], features are free."""
    return Threat(config.norm, config.epsilon, *dataset.train.box)


def build_objective(config: ObjectiveConfig, dataset: Dataset) -> Objective:
    """The base method; weight perturbation is the loop's to put around it."""
    threat = build_threat(config, dataset)
    inner = attacks.PGD(threat, config.steps, config.step_size)
    if config.label_smoothing and dataset.task == "regression":
        raise ValueError("objective.label_smoothing is for classes; this is a regression")
    if config.name == "standard":
        return objectives.Standard(dataset.task, config.label_smoothing)
    if config.name == "pgd":
        return objectives.PGD(inner, dataset.task, config.label_smoothing)
    if dataset.task == "regression":
        raise ValueError(f"{config.name} compares class probabilities; for regression use pgd")
    if config.label_smoothing:
        raise ValueError(f"objective.label_smoothing is for standard and pgd, not {config.name}")
    beside = replace(inner, start="gaussian")
    if config.name == "trades":
        return objectives.TRADES(config.beta, beside)
    return objectives.MART(config.mart_weight, beside)


def build_score(config: RegulariserConfig, dataset: Dataset) -> Score:
    """The score of the training inputs."""
    if config.score == "gaussian" or (config.score == "auto" and not dataset.train.is_images):
        if config.replaced != "none":
            raise ValueError(
                f"regulariser.replaced={config.replaced} takes the place of a denoiser's score; "
                "this one is a Gaussian's"
            )
        return Gaussian.fit(dataset.train.rows(slice(None)))
    if config.score == "auto" and dataset.name not in SHIPPED:
        raise ValueError(
            f"no score model ships for {dataset.name}: fit one with `taser score fit --data "
            f"{dataset.name} --out score.safetensors`, and give regulariser.score="
            "score.safetensors; for colour photographs regulariser.score=ffdnet will do"
        )
    denoiser = pretrained(dataset.name) if config.score == "auto" else named(config.score)
    level = {"timestep": config.timestep} if config.sigma is None else {"sigma": config.sigma}
    score = denoiser.at(**level)
    if config.precision is not None:
        score.precision = config.precision
    try:
        score(dataset.train.rows(slice(2)))
    except (RuntimeError, TypeError, IndexError) as error:  # of a stranger's network
        raise ValueError(
            f"regulariser.score={config.score} does not take the inputs of {dataset.name}, "
            f"of shape {dataset.input_shape}: {error}"
        ) from error
    return score if config.replaced == "none" else Replaced(score, config.replaced)


def build_regulariser(
    config: RegulariserConfig, dataset: Dataset, generator: torch.Generator, norm: Norm = "linf"
) -> Regulariser | None:
    """TASER or a control; its random directions come from `generator`. norm: for at "steepest"."""
    probe = Output() if dataset.task == "regression" else None
    if config.name == "none":
        return None
    if config.name == "gradient":
        return GradientPenalty(probe, config.fraction)
    if config.name == "jacobian":
        return JacobianPenalty(config.probes)
    penalty = SteinPenalty(
        probe, operator=config.operator, backend=config.backend, probes=config.probes,
        step=config.step, center=config.center, unbiased=config.unbiased, every=config.every,
        fraction=config.fraction, batchnorm=config.batchnorm, generator=generator,
    )  # fmt: skip
    score = build_score(config, dataset)
    if config.at != "auto":
        return Taser(penalty, score, config.at, norm=norm)
    return Taser(penalty, score, "paired" if hasattr(score, "paired") else "clean")


def unit_of(config: RegulariserConfig, regulariser: Regulariser | None, reach: float) -> float:
    """What R is multiplied with, so that `weight` is in its unit (1 for "raw" and "ratio").

    reach: how far the ball's edge is in every coordinate, as a root mean square.
    """
    if not isinstance(regulariser, Taser) or config.unit in ("raw", "ratio"):
        return 1.0
    if config.unit == "paper":
        return PIXELS_PER_UNIT**-4  # r_u = r_x/a², squared
    sigma = getattr(regulariser.score, "sigma", None)
    if sigma is None:
        raise ValueError(
            f"regulariser.unit={config.unit} needs a score at a noise level, a denoiser's"
        )
    if config.unit == "ball" and regulariser.at != "steepest":
        raise ValueError(
            "regulariser.unit=ball is for regulariser.at=steepest; with "
            f"at={regulariser.at} take unit=noise, and center=batch"
        )
    return float(sigma) ** 2 * (reach**2 if config.unit == "ball" else 1.0)
