"""The loop: from a configuration to a folder with log, checkpoints and weights."""

import json
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from taser._distributed import combine_seeds, seeded_step, world_size
from taser._files import write_atomically
from taser._progress import Progress as Told
from taser.data import Batch, Preprocessing
from taser.data._splitting import subset

from ._build import Setup, set_up
from ._checkpoint import (
    Progress,
    freeze,
    latest_checkpoint,
    same_statistics,
    save_checkpoint,
    thaw,
    weights_as_bytes,
)
from ._config import Config
from ._log import Log
from ._optimiser import learning_rate, ramp
from ._recipes import to_yaml
from ._result import Result, check_same_run
from ._step import NonFiniteLoss, gradient_ratio
from ._validation import Scores, validate

LINES_PER_EPOCH = 10
MEASUREMENTS = 10  # of the gradient ratio, over the ramp


def train(config: Config, out: Path | str, *, report: Told | None = None) -> Result:
    """Train, or go on with the run in `out`, which has to be of the same configuration.

    out/config.yaml, model.json, data.json (classes, columns and scale of its inputs), log.jsonl,
    tensorboard/, checkpoints/, best.safetensors (by what validation.select says), last.safetensors
    and result.json. report(done, total, label) is called after each step.
    """
    out = Path(out)
    check_same_run(config, out)
    setup = set_up(config)
    try:
        with FileLock(out / ".lock", timeout=0) if setup.rank == 0 else nullcontext():
            return _Run(setup, out, report).finish()
    except Timeout:
        raise RuntimeError(f"another process is training in {out}: wait, or stop it") from None


class _Run:
    def __init__(self, setup: Setup, out: Path, report: Told | None) -> None:
        self.setup, self.out, self.report = setup, out, report
        self.config, self.learner = setup.config, setup.learner
        self.main = setup.rank == 0
        checkpoint = latest_checkpoint(out / "checkpoints")
        self.progress = thaw(setup, checkpoint) if checkpoint else Progress()
        if self.main:
            write_atomically(out / "config.yaml", to_yaml(self.config))
            write_atomically(out / "model.json", json.dumps(asdict(setup.architecture), indent=1))
            write_atomically(out / "data.json", Preprocessing.of(setup.dataset).to_json())
        self.log = Log(out, self.progress.step, enabled=self.main)
        self.sums = {
            name: torch.tensor(value, device=setup.device)
            for name, value in self.progress.sums.items()
        }
        self.means: dict[str, float] = {}  # of the log's last line
        self.seen: Scores | None = self.progress.best
        self.saved = self.started = time.monotonic()

    def finish(self) -> Result:
        """Run what is left of it."""
        try:
            while self.setup.batches.epoch < self.config.loop.epochs and not self._out_of_patience:
                for batch in self.setup.batches:
                    self._advance(batch)
                self._end_of_epoch()
        finally:
            self.log.close()
        if self.main:
            self._write_weights("last", self.setup.evaluated)
        result = Result.of(self.out, self.progress)
        if self.main:
            result.write()
        return result

    @property
    def _out_of_patience(self) -> bool:
        patience = self.config.validation.patience
        return patience is not None and self.progress.stale >= patience

    def _advance(self, batch: Batch) -> None:
        step, steps = self.progress.step, self.setup.steps
        x, y, s = self._own_part(batch)
        generator = seeded_step(self.config.loop.seed, step, self.setup.rank, self.setup.device)
        self.setup.generator.manual_seed(
            combine_seeds(self.config.loop.seed, step, self.setup.rank, 2)
        )
        for group in self.learner.optimiser.param_groups:
            group["lr"] = learning_rate(
                step, steps, self.config.optimiser.rate, self.config.schedule
            )
        weight = self._weight(step, x, y, s, generator)
        objective = self.config.objective
        awp = objective.awp and self.setup.batches.epoch >= objective.awp_start
        self.learner.number = step
        try:
            numbers = self.learner.step(x, y, s, generator, weight=weight, perturb=awp)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(
                f"{error} at step {step}, epoch {self.setup.batches.epoch + 1}: lower the rate or "
                f"the regulariser's weight. The last good checkpoint is in {self.out}/checkpoints"
            ) from None
        if self.setup.average is not None:
            self.setup.average.update(self.learner.module, step)
        self.progress.step += 1
        self._count(numbers, weight)
        within = self.setup.batches.position < len(self.setup.batches)  # the end saves by itself
        if within and time.monotonic() - self.saved > 60 * self.config.loop.save_minutes:
            self._save()

    def _own_part(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """This process's share of the global batch."""
        size = len(batch.x) // world_size()
        rows = slice(self.setup.rank * size, (self.setup.rank + 1) * size)
        x, s = batch.x[rows], None if batch.s is None else batch.s[rows]
        return x.contiguous(memory_format=self.setup.layout), batch.y[rows], s

    def _weight(
        self, step: int, x: Tensor, y: Tensor, s: Tensor | None, generator: torch.Generator
    ) -> float:
        """λ(t)."""
        config = self.config.regulariser
        if config.name == "none":
            return 0.0
        share = ramp(step, self.setup.steps, config.ramp)
        if config.unit != "ratio":
            return share * config.weight
        ramp_steps = int(config.ramp * self.setup.steps)
        if step <= ramp_steps and step % max(1, ramp_steps // MEASUREMENTS) == 0:
            self.progress.measured = gradient_ratio(self.learner, x, y, s, generator)
        return share * config.weight * (self.progress.measured or 0.0)

    def _count(self, numbers: dict[str, Tensor], weight: float) -> None:
        """Add to the averages, and log them now and then: reading a number makes a GPU wait."""
        for name, value in numbers.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(value)) + value
        self.progress.summed += 1
        per_epoch = len(self.setup.batches)
        if self.progress.step % max(1, per_epoch // LINES_PER_EPOCH) == 0:
            means = {name: float(value) / self.progress.summed for name, value in self.sums.items()}
            rate = self.learner.optimiser.param_groups[0]["lr"]
            more = {"weight": weight} if self.learner.regulariser is not None else {}
            self.log.write(self.progress.step, "train", {**means, **more, "rate": rate})
            self.sums, self.progress.summed = {}, 0
            self.means = means
        if self.report and self.main:
            self.report(self.progress.step, self.setup.steps, self._label())

    def _label(self) -> str:
        means = self.means
        epoch = min(self.setup.batches.epoch + 1, self.config.loop.epochs)
        words = [f"epoch {epoch}/{self.config.loop.epochs}"]
        words += [f"{k} {means[k]:.3g}" for k in ("loss", "penalty", "teacher") if k in means]
        if self.seen is not None:
            clean, robust = self.seen.clean, self.seen.robust
            regression = self.setup.dataset.task == "regression"
            words.append(
                f"error {-clean:.3g}, attacked {-robust:.3g}"
                if regression
                else f"clean {clean:.1%} robust {robust:.1%}"
            )
        return " · ".join(words)

    def _end_of_epoch(self) -> None:
        same_statistics(self.learner.module)
        if self.setup.average is not None:
            same_statistics(self.setup.average.model)
        epoch, check = self.setup.batches.epoch, self.config.validation
        if epoch % check.every == 0 or epoch == self.config.loop.epochs:
            began = time.monotonic()
            self._validate()
            self.started += time.monotonic() - began  # which is not training
        self._save()

    def _validate(self) -> None:
        held_out = self.setup.dataset.validation
        # A draw, because the first rows may be all of one class: folders come in that order.
        rows = subset(len(held_out), self.config.validation.examples)
        scores = validate(
            self.setup.evaluated, held_out.rows(rows), held_out.y[rows], self.setup.attack,
            seed=self.config.loop.seed, rank=self.setup.rank,
        )  # fmt: skip
        self.seen = scores
        progress = self.progress
        best = progress.best
        improved = best is None or self._merit(scores)[0] > self._merit(best)[0]
        progress.stale = 0 if improved else progress.stale + 1
        if best is None or self._merit(scores) >= self._merit(best):
            progress.best, progress.best_step = scores, progress.step
            if self.main:
                self._write_weights("best", self.setup.evaluated)
        numbers = {"epoch": float(self.setup.batches.epoch), **asdict(scores)}
        self.log.write(progress.step, "validation", numbers)

    def _merit(self, scores: Scores) -> tuple[float, float]:
        """What the best checkpoint is chosen by; ties go by the other figure, then to the later.

        Held-out figures move in steps of one example, so that ties are common on small data.
        """
        select = self.config.validation.select
        if select == "last":
            return 0.0, 0.0
        if select == "auto":
            select = "clean" if self.config.objective.name == "standard" else "robust"
        clean, robust = float(scores.clean), float(scores.robust)
        return (clean, robust) if select == "clean" else (robust, clean)

    def _save(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self.started
        self.started = self.saved = now
        self.progress.sums = {name: float(value) for name, value in self.sums.items()}
        if self.main:
            save_checkpoint(
                self.out / "checkpoints", self.progress.step, freeze(self.setup, self.progress)
            )

    def _write_weights(self, name: str, model: nn.Module) -> None:
        content = weights_as_bytes(model.state_dict())
        write_atomically(self.out / f"{name}.safetensors", content)
