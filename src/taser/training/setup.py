"""A run before its first step: everything the configuration names, on its device."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from taser import attacks
from taser.data import Batches, Dataset
from taser.models.layout import bears_channels_last
from taser.stein.part import processes

from .assemble import (
    Architecture,
    architecture,
    build_augmentation,
    build_data,
    build_objective,
    build_regulariser,
    build_threat,
    unit_of,
)
from .attacked import Attacked
from .cached import cached_scores
from .config import Config
from .ema import Average
from .optimiser import build_optimiser
from .precision import Precision
from .randomness import WEIGHTS, mixed
from .step import Learner


@dataclass
class Setup:
    """What a run is made of.

    generator: of the regulariser's draws, seeded anew in each step; layout: of batches of images.
    """

    config: Config
    dataset: Dataset
    architecture: Architecture
    batches: Batches
    learner: Learner
    average: Average | None
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
        """The weights that are validated and kept: the average, if there is one."""
        return self.average.model if self.average else self.learner.module


def set_up(config: Config, dataset: Dataset | None = None) -> Setup:
    """Build it all; the weights depend on the configuration and nothing else.

    dataset: instead of the one that the configuration names.
    """
    if config.loop.threads:
        torch.set_num_threads(config.loop.threads)
    # Buffers are not broadcast between the forwards of one step, which would change them in place.
    several = DistributedDataParallelKwargs(broadcast_buffers=False)
    # Precision is ours to choose, see precision.py, whatever `accelerate launch` was told.
    # Without an accelerator, several processes are only told apart if they ask for the CPU.
    cpu = config.loop.device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[several])
    device, rank = accelerator.device, accelerator.process_index
    dataset = dataset or build_data(config.data)
    network = architecture(config.model, dataset)
    torch.manual_seed(mixed(config.loop.seed, WEIGHTS))
    model = network.build(weights=_weights(config)).train().to(device)
    if config.model.freeze_norm:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    last = config.loop.channels_last and dataset.train.is_images
    last = last and bears_channels_last(model, device.type)
    layout = torch.channels_last if last else torch.contiguous_format
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    generator = torch.Generator(device)
    learner = _learner(config, dataset, model, generator, device)
    batches = _batches(config, dataset, learner, device)
    average = Average(model, config.loop.ema) if config.loop.ema else None
    learner.model = accelerator.prepare_model(model)
    check = config.validation
    threat = build_threat(config.objective, dataset)
    attack = attacks.PGD(threat, check.steps)
    return Setup(
        config, dataset, network, batches, learner, average, attack, generator, device, rank, layout
    )


def _batches(config: Config, dataset: Dataset, learner: Learner, device: torch.device) -> Batches:
    size = min(config.loop.batch, len(dataset.train))
    if size % processes():
        raise ValueError(
            f"loop.batch={size} is shared by {processes()} processes: give a multiple of that"
        )
    config.check_pieces(size // processes())
    return Batches(
        dataset.train.to(device), size, seed=config.loop.seed,
        scores=cached_scores(config, dataset, learner.regulariser),
        augment=build_augmentation(config.data, dataset), drop_last=True,
    )  # fmt: skip


def _weights(config: Config) -> Path | None:
    return Path(config.model.weights).expanduser() if config.model.weights else None


def _learner(
    config: Config,
    dataset: Dataset,
    model: nn.Module,
    generator: torch.Generator,
    device: torch.device,
) -> Learner:
    objective = build_objective(config.objective, dataset)
    reach = build_threat(config.objective, dataset).reach(dataset.input_shape)
    regulariser = build_regulariser(config.regulariser, dataset, generator, config.objective.norm)
    if isinstance(regulariser, nn.Module):
        regulariser.to(device)
        # A difference of two rounded answers is mostly rounding; attacks and loss are in bfloat16
        # on a GPU, so that it is the penalty alone which gets slower.
        torch.backends.cudnn.allow_tf32 = False
    teacher = None
    if config.teacher.weight:
        if dataset.task == "regression":
            raise ValueError("teacher.weight is for classifiers: it compares class probabilities")
        teacher = copy.deepcopy(model).eval().requires_grad_(False)
    return Learner(
        model, objective, build_optimiser(model, config.optimiser),
        Precision(config.loop.precision, device), regulariser,
        unit_of(config.regulariser, regulariser, reach), teacher,
        config.teacher.weight, config.objective.awp_gamma, config.objective.awp_with_penalty,
        config.optimiser.clip,
        config.loop.accumulate, attacked=Attacked(config.loop.fold, config.loop.compile),
    )  # fmt: skip
