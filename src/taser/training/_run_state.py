"""The state of a run, as a checkpoint and back."""

from dataclasses import asdict, dataclass, field

from torch import Tensor, nn

from taser._checkpoint import Checkpoint, optimiser_tensors, restore_optimiser

from ._build import Setup
from ._validation import ValidationMetrics


@dataclass
class RunState:
    """How far a run is.

    step: steps done; measured: the gradient ratio that λ is multiplied with; weight: λ of now, if a
    target for the loss decides it; best, best_step: the best validation; stale: how many
    validations since the chosen figure rose; seconds: of training; sums, summed: of the log's next
    line, in whose middle a checkpoint may come.
    """

    step: int = 0
    measured: float | None = None
    weight: float | None = None
    best: ValidationMetrics | None = None
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    sums: dict[str, Tensor | float] = field(default_factory=dict)
    summed: int = 0


def to_checkpoint(setup: Setup, state: RunState) -> Checkpoint:
    """What a resumed run needs; of several processes, the first's BatchNorm statistics."""
    tensors = {name: module.state_dict() for name, module in _modules(setup).items()}
    tensors["optimiser"] = optimiser_tensors(setup.learner.optimiser)
    if setup.learner.regulariser is not None and (centre := setup.learner.regulariser.state()):
        tensors["centre"] = centre
    sums = {name: float(value) for name, value in state.sums.items()}
    return Checkpoint(tensors, {
        "progress": {**asdict(state), "sums": sums},
        "batches": setup.batches.state_dict(),
        "scaler": setup.learner.precision.scaler.state_dict(),
        "data": setup.dataset.hash,
    })  # fmt: skip


def from_checkpoint(setup: Setup, checkpoint: Checkpoint) -> RunState:
    """Put a checkpoint back into a run that was just set up."""
    state = checkpoint.state
    if state["data"] != setup.dataset.hash:
        raise ValueError("the data are not those that this run began with: start a new one")
    for name, module in _modules(setup).items():
        module.load_state_dict(checkpoint.tensors[name])
    if setup.learner.regulariser is not None and "centre" in checkpoint.tensors:
        setup.learner.regulariser.load_state(checkpoint.tensors["centre"])
    restore_optimiser(setup.learner.optimiser, checkpoint.tensors["optimiser"])
    setup.batches.load_state_dict(state["batches"])
    if state["scaler"]:
        setup.learner.precision.scaler.load_state_dict(state["scaler"])
    best = state["progress"]["best"]
    return RunState(**{**state["progress"], "best": ValidationMetrics(**best) if best else None})


def _modules(setup: Setup) -> dict[str, nn.Module]:
    """The parts of a run that have a state_dict, by their names in a checkpoint."""
    average = None if setup.average is None else setup.average.model
    found = {"model": setup.learner.module, "average": average, "teacher": setup.learner.teacher}
    return {name: module for name, module in found.items() if module is not None}
