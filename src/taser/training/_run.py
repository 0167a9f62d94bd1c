"""The training loop: from a configuration to a folder with log, checkpoints and weights."""

import json
import logging
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from taser import attacks
from taser._checkpoint import (
    Checkpoint,
    latest_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
    weights_as_bytes,
)
from taser._files import Progress, write_atomically
from taser._runtime import (
    VALIDATION,
    all_sum,
    average_buffers,
    combine_seeds,
    seeded_step,
    world_size,
)
from taser.data import Batch, Preprocessing
from taser.data._dataset import subset
from taser.regularisers import PenaltyShare, TargetLoss
from taser.stein._model_state import eval_mode

from ._build import Setup, set_up
from ._config import Config, ScheduleConfig
from ._recipes import to_yaml
from ._run_folder import Log, Result, check_same_run
from ._step import NonFiniteLoss

logger = logging.getLogger(__name__)
LINES_PER_EPOCH = 10


@dataclass(frozen=True)
class ValidationMetrics:
    """Accuracies, clean and under attack; for regression mean squared errors, negated."""

    clean: float
    robust: float


def train(config: Config, out: Path | str, *, report: Progress | None = None) -> Result:
    """Train, or resume the run in `out`, which must have the same configuration.

    It writes config.yaml, model.json, data.json (classes, columns and scale of the inputs),
    log.jsonl, checkpoints/, best.safetensors (chosen by validation.select), last.safetensors and
    result.json. report(done, total, label) is called after each step and before each validation.
    """
    out = Path(out)
    check_same_run(config, out)
    setup = set_up(config)
    try:
        with FileLock(out / ".lock", timeout=0) if setup.rank == 0 else nullcontext():
            return _Run(setup, out, report).run()
    except Timeout:
        raise RuntimeError(f"another process is training in {out}: wait, or stop it") from None


@dataclass
class RunState:
    """How far a run is.

    step: steps done. weight: current λ when target_loss is set. best, best_step: the best
    validation. validations_without_gain: validations without improvement, "stale" in a checkpoint.
    sums, summed: totals since the last log line, saved so that a resumed log is complete.
    """

    step: int = 0
    weight: float | None = None
    best: ValidationMetrics | None = None
    best_step: int = 0
    validations_without_gain: int = 0
    seconds: float = 0.0
    sums: dict[str, Tensor | float] = field(default_factory=dict)
    summed: int = 0


def to_checkpoint(setup: Setup, state: RunState) -> Checkpoint:
    """What a resumed run needs. With several processes, BatchNorm statistics of rank 0."""
    tensors = {name: module.state_dict() for name, module in _modules(setup).items()}
    tensors["optimiser"] = optimiser_tensors(setup.learner.optimiser)
    if setup.learner.regulariser is not None and (centre := setup.learner.regulariser.state()):
        tensors["centre"] = centre
    progress = asdict(state)
    progress["stale"] = progress.pop("validations_without_gain")
    progress["sums"] = {name: float(value) for name, value in state.sums.items()}
    return Checkpoint(tensors, {
        "progress": progress,
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
    best, progress = state["progress"]["best"], dict(state["progress"])
    progress.pop("measured", None)  # from an earlier version
    progress["validations_without_gain"] = progress.pop("stale")
    return RunState(**{**progress, "best": ValidationMetrics(**best) if best else None})


def _modules(setup: Setup) -> dict[str, nn.Module]:
    """The parts of a run that have a state_dict, by their names in a checkpoint."""
    ema = None if setup.ema is None else setup.ema.model
    found = {"model": setup.learner.module, "average": ema, "teacher": setup.learner.teacher}
    return {name: module for name, module in found.items() if module is not None}


class _Run:
    """A run in a folder; it resumes from the last checkpoint, if there is one."""

    def __init__(self, setup: Setup, out: Path, report: Progress | None) -> None:
        self.setup, self.out, self.report = setup, out, report
        self.config, self.learner, self.batches = setup.config, setup.learner, setup.batches
        self.main = setup.rank == 0
        checkpoint = latest_checkpoint(out / "checkpoints")
        try:
            self.state = from_checkpoint(setup, checkpoint) if checkpoint else RunState()
        except (KeyError, TypeError) as error:
            what = f"the checkpoint in {out} was written by another version of taser ({error})"
            raise ValueError(f"{what}: choose another folder") from error
        if self.state.best is not None and not (out / "best.safetensors").is_file():
            what = f"{out} has lost its best weights, best.safetensors"
            raise ValueError(f"{what}, of step {self.state.best_step}: train in another folder")
        loss, start = self.config.regulariser.target_loss, self.config.regulariser.weight
        self.target = TargetLoss(loss, start=start) if loss else None
        if self.target is not None:
            self.target.weight = self.state.weight or self.target.weight
        self._write("config.yaml", to_yaml(self.config))
        self._write("model.json", json.dumps(setup.architecture, indent=1))
        self._write("data.json", Preprocessing.of(setup.dataset).to_json())
        self.log = Log(out, self.state.step, track=self.config.loop.track, enabled=self.main)
        self.means: dict[str, float] = {}  # in the last log line
        self.metrics = self.state.best  # from the last validation
        self.saved = self.started = time.monotonic()
        self.share = PenaltyShare()

    def run(self) -> Result:
        """Train until the last epoch, or until patience runs out, and write the result."""
        state, validation, epochs = self.state, self.config.validation, self.config.loop.epochs
        patience = math.inf if validation.patience is None else validation.patience
        self._report_progress("training")
        try:
            while self.batches.epoch < epochs and state.validations_without_gain < patience:
                for batch in self.batches:
                    self._step(batch)
                average_buffers(self.learner.module)  # each process saw its own part of the data
                if self.setup.ema is not None:
                    average_buffers(self.setup.ema.model)
                if self.batches.epoch % validation.every == 0 or self.batches.epoch == epochs:
                    self._validate()
                self._save()
        finally:
            self.log.close()
        assert state.best is not None
        self._write_weights("last")
        best = asdict(state.best)
        result = Result(self.out, state.step, state.best_step, **best, seconds=state.seconds)
        entries = {**asdict(result), "folder": self.out.name}
        self._write("result.json", json.dumps(entries, indent=1))  # written last: it is finished
        return result

    def _step(self, batch: Batch) -> None:
        """Set seeds, rate and λ, update, log, and save a checkpoint every few minutes."""
        setup, config, step = self.setup, self.config, self.state.step
        x, y = self._own_part(batch)
        generator = seeded_step(config.loop.seed, step, setup.rank, setup.device)
        setup.generator.manual_seed(combine_seeds(config.loop.seed, step, setup.rank, 2))
        rate = learning_rate(step, setup.steps, config.optimiser.rate, config.schedule)
        for group in self.learner.optimiser.param_groups:
            group["lr"] = rate
        weight = self._weight()
        awp = config.objective.awp and self.batches.epoch >= config.objective.awp_start
        self.learner.step_number = step
        try:
            numbers = self.learner.step(x, y, generator, weight=weight, perturb=awp)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(
                f"{error} at step {step}, epoch {self.batches.epoch + 1}: lower the rate or "
                f"the regulariser's weight. The last good checkpoint is in {self.out}/checkpoints"
            ) from None
        if setup.ema is not None:
            setup.ema.update(self.learner.module, step)
        if self.target is not None:
            self.state.weight = self.target(numbers["base"])
        elif "penalty" in numbers:
            report = self.share.add(numbers["base"], numbers["penalty"], weight)
            if report and self.main:
                logger.warning(report)
        self.state.step += 1
        self._add_to_log(numbers, weight, rate)
        in_epoch = self.batches.position < len(self.batches)  # run() saves at the end of an epoch
        if in_epoch and time.monotonic() - self.saved > 60 * config.loop.save_minutes:
            self._save()

    def _own_part(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """This process's share of the global batch."""
        size = len(batch.x) // world_size()
        rows = slice(self.setup.rank * size, (self.setup.rank + 1) * size)
        return batch.x[rows].contiguous(memory_format=self.setup.layout), batch.y[rows]

    def _weight(self) -> float:
        """λ at this step: set by the target loss, or ramp × weight."""
        config = self.config.regulariser
        if self.target is not None:
            return self.target.weight
        return ramp(self.state.step, self.setup.steps, config.ramp) * config.weight

    def _add_to_log(self, numbers: dict[str, Tensor], weight: float, rate: float) -> None:
        """Add to the sums, and sometimes log their means: reading a number makes a GPU wait."""
        state = self.state
        for name, value in numbers.items():
            state.sums[name] = state.sums.get(name, 0.0) + value
        state.summed += 1
        if state.step % max(1, len(self.batches) // LINES_PER_EPOCH) == 0:
            self.means = {name: float(total) / state.summed for name, total in state.sums.items()}
            more = {"weight": weight} if self.learner.regulariser is not None else {}
            self.log.write(state.step, "train", {**self.means, **more, "rate": rate})
            state.sums, state.summed = {}, 0
        self._report_progress("training")

    def _report_progress(self, stage: str) -> None:
        """Report steps done, the current stage and the last figures."""
        if self.report is None or not self.main:
            return
        means, epochs, metrics = self.means, self.config.loop.epochs, self.metrics
        epoch = min(self.batches.epoch + (stage == "training"), epochs)
        words = [f"{stage}, epoch {epoch}/{epochs}"]
        words += [f"{k} {means[k]:.3g}" for k in ("loss", "penalty", "teacher") if k in means]
        if metrics is not None and self.setup.dataset.task == "regression":
            unit = Preprocessing.of(self.setup.dataset).square_unit
            clean, robust = (-unit * error for error in (metrics.clean, metrics.robust))
            words.append(f"squared error {clean:.4g}, attacked {robust:.4g}")
        elif metrics is not None:
            words.append(f"clean {metrics.clean:.1%} robust {metrics.robust:.1%}")
        self.report(self.state.step, self.setup.steps, " · ".join(words))

    def _validate(self) -> None:
        """Validate; keep the weights if they are the best so far."""
        self._report_progress("validation")
        began = time.monotonic()
        held_out, state = self.setup.dataset.validation, self.state
        # Random rows, because a folder is sorted by class.
        rows = subset(len(held_out), self.config.validation.examples)
        metrics = self.metrics = validate(
            self.setup.evaluated, held_out.rows(rows), held_out.y[rows], self.setup.attack,
            seed=self.config.loop.seed, rank=self.setup.rank,
        )  # fmt: skip
        key = self._selection_key(metrics)
        best = None if state.best is None else self._selection_key(state.best)
        gained = best is None or key[0] > best[0]
        state.validations_without_gain = 0 if gained else state.validations_without_gain + 1
        if best is None or key >= best:
            state.best, state.best_step = metrics, state.step
            self._write_weights("best")
        numbers = {"epoch": float(self.batches.epoch), **asdict(metrics)}
        self.log.write(state.step, "validation", numbers)
        self.started += time.monotonic() - began  # validation is not training time

    def _selection_key(self, metrics: ValidationMetrics) -> tuple[float, float]:
        """Sort key for the best checkpoint: the other accuracy breaks ties, then the step."""
        select = self.config.validation.select
        if select == "last":
            return 0.0, 0.0
        if select == "auto":
            robust = self.learner.objective.moves_inputs or self.target is not None
            select = "robust" if robust else "clean"
        both = metrics.clean, metrics.robust
        return both if select == "clean" else both[::-1]

    def _save(self) -> None:
        now = time.monotonic()
        self.state.seconds += now - self.started
        self.started = self.saved = now
        if self.main:
            content = to_checkpoint(self.setup, self.state)
            save_checkpoint(self.out / "checkpoints", self.state.step, content)

    def _write_weights(self, name: str) -> None:
        self._write(f"{name}.safetensors", weights_as_bytes(self.setup.evaluated.state_dict()))

    def _write(self, name: str, content: str | bytes) -> None:
        if self.main:
            write_atomically(self.out / name, content)


def learning_rate(step: int, steps: int, highest: float, config: ScheduleConfig) -> float:
    """η at step 0 ≤ t < T: a linear warm-up, then the schedule.

    Cosine: η_min + ½(η_max − η_min)(1 + cos(π (t − T_w)/(T − T_w))), as the paper fine-tunes.
    """
    warm = config.warmup * steps
    if step < warm:
        return highest * min(1.0, (step + 1) / warm)
    done, lowest = (step - warm) / max(1.0, steps - warm), config.final * highest
    if config.name == "cosine":
        return lowest + 0.5 * (highest - lowest) * (1 + math.cos(math.pi * done))
    if config.name == "linear":
        return highest + (lowest - highest) * done
    if config.name == "step":
        return highest * config.factor ** sum(step >= mark * steps for mark in config.milestones)
    return highest


def ramp(step: int, steps: int, share: float) -> float:
    """min(1, t/T_w), the factor of λ; T_w is the given share of training."""
    return 1.0 if share <= 0 else min(1.0, step / max(1.0, share * steps))


def validate(
    model: nn.Module, x: Tensor, y: Tensor, attack: attacks.PGD,
    *, seed: int = 0, batch: int = 256, rank: int = 0,
) -> ValidationMetrics:  # fmt: skip
    """Clean and robust figures on x (N, *) and y (N,); each process computes a share."""
    regression = y.is_floating_point()
    loss = attacks.squared_error if regression else attacks.cross_entropy
    sums = torch.zeros(2, dtype=torch.float64)
    device = next(model.parameters()).device
    for number, rows in enumerate(torch.arange(len(x)).split(batch)):
        if number % world_size() != rank:
            continue
        inputs, target = x[rows].to(device), y[rows].to(device)
        generator = torch.Generator(device).manual_seed(combine_seeds(seed, VALIDATION, number))
        attacked = attack(model, inputs, target, loss=loss, generator=generator)
        with eval_mode(model, freeze=True), torch.no_grad():
            for place, outputs in enumerate((model(inputs), model(attacked))):
                right = -loss(outputs, target) if regression else outputs.argmax(1) == target
                sums[place] += right.sum().cpu()
    if world_size() > 1:
        sums = all_sum(sums.to(device))
    return ValidationMetrics(*(sums / len(x)).tolist())
