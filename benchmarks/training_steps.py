"""The training steps that are measured: each method without TASER, the paper's way, by default."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from measure import Stepper
from taser import attacks
from taser.data import Dataset, Split
from taser.objectives import PGD
from taser.training import Config, read_recipe, set_up

METHODS = {
    "standard": "Standard", "pgd": "PGD", "trades": "TRADES", "mart": "MART",
    "trades-awp": "TRADES + AWP", "mart-awp": "MART + AWP",
}  # fmt: skip
MODES = {
    "off": [],
    "paper": [
        "regulariser.name=taser", "regulariser.form=paper", "regulariser.backend=reverse",
        "regulariser.every=1", "regulariser.fraction=1.0", "regulariser.weight=1.0",
    ],
    "default": ["regulariser.name=taser"],
}  # fmt: skip
"""The paper's way: second derivatives of every example in every step, the score network too."""
MODE_TITLES = {"off": "—", "paper": "+ TASER, the paper's way", "default": "+ TASER, default"}
PLAIN_LOOPS = {"loop by loss.backward()": True, "loop by autograd.grad": False}
"""PGD training as it is usually written, and whether its attack computes weight gradients too."""


@dataclass(frozen=True)
class Workload:
    """A CIFAR ResNet-18 and its batch."""

    width: int
    batch: int

    @property
    def name(self) -> str:
        """In tables."""
        return f"ResNet-18, width {self.width}, batch {self.batch}"


WORKLOADS = (Workload(64, 32), Workload(16, 128))


def images(size: int) -> Dataset:
    """Random pixels in the shape of CIFAR-10: time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(pixels, torch.randint(10, (size,), generator=generator))
    return Dataset("cifar10", split, split, split, tuple("0123456789"))


def configuration(workload: Workload, method: str, overrides: Sequence[str]) -> Config:
    """The laptop recipe of the method at this size, with the paper's activation.

    The learning rate is tiny, since training on a single random batch diverges.
    """
    size = [f"model.width={workload.width}", f"loop.batch={workload.batch}"]
    always = [*size, "model.activation=relu", "optimiser.rate=1e-6"]
    return read_recipe(f"cifar10/{method}", [*always, *overrides])


def stepper(workload: Workload, method: str, overrides: Sequence[str]) -> Stepper:
    """Training steps as a function, as many as make up one round of a lazy penalty; how many."""
    config = configuration(workload, method, overrides)
    setup = set_up(config, images(workload.batch))
    batch = next(iter(setup.batches))
    x = batch.x.contiguous(memory_format=setup.layout)

    def round_of_steps() -> None:
        for number in range(config.regulariser.every):
            setup.learner.step_number = number
            torch.manual_seed(number)
            generator = torch.Generator(setup.device).manual_seed(number)
            setup.learner.step(x, batch.y, generator, weight=1e-3, perturb=config.objective.awp)

    return round_of_steps, config.regulariser.every


def plain_pgd_loop(workload: Workload, weight_gradients: bool) -> Callable[[], None]:
    """PGD training as it is usually written: contiguous, nothing folded, nothing frozen.

    weight_gradients: its attack calls loss.backward(), which computes those of the weights too;
    else torch.autograd.grad for the input alone. Both are found in published code.
    """
    config = configuration(workload, "pgd", [])
    setup = set_up(config, images(workload.batch))
    model = setup.learner.module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    batch = next(iter(setup.batches))
    x, y = batch.x.contiguous(), batch.y
    assert isinstance(setup.learner.objective, PGD)
    inner = setup.learner.objective.inner
    assert isinstance(inner, attacks.PGD)
    epsilon = inner.threat.epsilon
    optimiser = setup.learner.optimiser

    def step() -> None:
        model.eval()
        moved = (x + epsilon * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(inner.steps):
            moved.requires_grad_()
            loss = F.cross_entropy(model(moved), y)
            if weight_gradients:
                loss.backward()
                gradient = moved.grad
            else:
                (gradient,) = torch.autograd.grad(loss, moved)
            assert gradient is not None
            moved = moved.detach() + inner.length * gradient.sign()
            moved = torch.min(torch.max(moved, x - epsilon), x + epsilon).clamp(0, 1)
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimiser.step()

    return step
