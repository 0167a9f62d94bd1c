"""Run attacks on a set of examples batch by batch: verified, resumable, with early exit."""

import copy
import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from taser._files import Progress, duration, read_json, write_atomically
from taser.attacks import Attack, Model, input_gradient, margin
from taser.attacks._random_models import Averaged, Votes
from taser.attacks._simple import stages_of
from taser.attacks._threat import inside
from taser.models._copies import fold_batchnorm
from taser.stein._model_state import check_module

from ._record import Finding, Verdicts, predictions, seeded

TRIED = 32  # examples that a model is checked with
OUTPUTS = 1e-4  # tolerance / largest logit: float32 rounding in a deep network is far below
GRADIENTS = 1e-2  # tolerance / gradient norm: rounding moves a few kinks of ReLU
AT_ONCE = 64  # images on a CPU: LeNet-5 is twice as fast as with 192
VALUES = AT_ONCE * 28 * 28  # more of smaller images: 8×8 digits are 1.2–1.5 times faster


@dataclass(frozen=True)
class BatchResult:
    """The result of one stage of an attack on a batch of R examples."""

    rows: Tensor  # (R,)
    broken: Tensor  # (R,) bool
    distance: Tensor  # (R,), zero where not broken
    points: Tensor  # (k, *), the inputs that broke the k broken examples
    findings: tuple[Finding, ...]
    seconds: float


class FolderConflict(ValueError):
    """The folder holds the results of another evaluation."""


class BatchStore:
    """A folder with a file for every finished batch, refused if made with other `settings`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        path = folder / "settings.json"
        wanted = json.loads(json.dumps(settings))  # as it will be read back
        advice = "choose another folder (--out), or remove this one to start anew"
        if not path.exists():
            if (folder / "batches").exists():
                what = "batches without their settings.json"
                raise FolderConflict(f"{folder} holds {what}: {advice}")
            write_atomically(path, json.dumps(wanted, indent=1) + "\n")
        found = read_json(path)  # an older version may have written fewer settings
        if other := [name for name in wanted if name in found and found[name] != wanted[name]]:
            what = f"an evaluation with other {', '.join(other)}"
            raise FolderConflict(f"{folder} holds {what}: {advice}")

    def get(self, key: str, rows: Tensor) -> BatchResult | None:
        """A finished batch of these rows, or None if there is none or it is damaged."""
        try:
            with safe_open(self._path(key), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — it is no dict
                record = json.loads(file.metadata()["record"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            return None
        if not torch.equal(tensors["rows"], rows) or len(tensors["broken"]) != len(rows):
            return None
        findings = tuple(Finding(**finding) for finding in record["findings"])
        return BatchResult(**tensors, findings=findings, seconds=record["seconds"])

    def put(self, key: str, batch: BatchResult) -> None:
        """Store a finished batch."""
        record = {"findings": [asdict(f) for f in batch.findings], "seconds": batch.seconds}
        tensors = {
            "rows": batch.rows, "broken": batch.broken,
            "distance": batch.distance, "points": batch.points.contiguous(),
        }  # fmt: skip
        write_atomically(self._path(key), save(tensors, {"record": json.dumps(record)}))

    def _path(self, key: str) -> Path:
        return self.folder / "batches" / f"{key}.safetensors"


def open_store(out: Path | str | None, settings: dict[str, Any]) -> BatchStore | None:
    """The store in this folder, which several processes may share; None without a folder."""
    if out is None:
        return None
    with FileLock(Path(out) / ".lock"):
        return BatchStore(Path(out), settings)


T = TypeVar("T")


def share(
    count: int, folder: Path | None, finished: Callable[[int], T | None], work: Callable[[int], T]
) -> Iterator[tuple[int, T]]:
    """Yield (i, result) for each i < count, in the order in which results are ready.

    Processes that share `folder` divide the work by file locks; `finished` reads what was done.
    """
    left = list(range(count))
    for wait in (0, -1):  # first items that no other process works on, then the rest
        for i in left.copy():
            result = finished(i)
            if result is None and folder is None:
                result = work(i)
            elif result is None and folder is not None:
                try:
                    with FileLock(folder / f"{i}.lock", timeout=wait):
                        result = finished(i) or work(i)
                except Timeout:
                    continue
            left.remove(i)
            yield i, result  # type: ignore[misc]


@dataclass(frozen=True)
class AttackLoop:
    """Runs attacks on n examples, against `prepared`, a faster copy of the model.

    `model` classifies the attacked points; they count only inside the threat's ball and box.
    """

    model: Model
    prepared: Model
    x: Tensor
    y: Tensor
    seed: int
    batch_size: int
    store: BatchStore | None = None  # for finished batches

    @classmethod
    def of(cls, model: Model, x: Tensor, y: Tensor, *options: Any, eot: int = 1) -> Self:
        """Prepare the model; options: seed, batch_size and store.

        eot: draws of a random model in each call of an attack; its verdicts are majorities.
        """
        prepared = Differentiable(prepare(model, x, y))
        if eot == 1:
            return cls(model, prepared, x, y, *options)
        return cls(Votes(model), Averaged(prepared, eot), x, y, *options)

    def correct(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether the model classifies each example correctly. x: (B, *); y: (B,) → (B,)."""
        return predictions(self.model, x, self.batch_size) == y

    def estimate(self, passes: int) -> str:
        """The time for `passes` forward passes of one example, in words, measured on one batch."""
        x = self.x[: self.batch_size]
        predictions(self.prepared, x[:2])  # the first call is slow
        start = time.perf_counter()
        predictions(self.prepared, x, self.batch_size)
        seconds = (time.perf_counter() - start) / len(x) * passes
        return f"about {duration(seconds)}, less if examples break early"

    def run(
        self, attack: Attack, correct: Tensor, key: str = "", progress: Progress | None = None
    ) -> tuple[Verdicts, Tensor, list[Finding]]:
        """Attack the examples that are `correct`, (n,): verdicts, points (n, *), findings.

        Each stage of a cascade runs on all examples that are still correct, in full batches. key:
        seeds and names the batches, by default the attack's name; progress: in forward passes;
        passes that a broken example skips count as done.
        """
        key = key or attack.name
        correct, points = correct.clone(), self.x.cpu().clone()
        distance, stage_of = torch.zeros(len(correct)), torch.full((len(correct),), -1)
        findings: list[Finding] = []
        seconds, stages = 0.0, stages_of(attack)
        costs = [passes_of(stage) for stage in stages]
        total = int(correct.sum()) * sum(costs)
        for place, stage in enumerate(stages):
            todo = correct.nonzero()[:, 0]
            label = attack.name if len(stages) == 1 else f"{attack.name} {stage.name}"
            batches, left = todo.split(self.batch_size) if len(todo) else (), len(todo)
            found: dict[int, tuple[Finding, ...]] = {}
            for number, batch in self._batches(stage, batches, f"{key}.{place}-{stage.name}"):
                rows = batches[number]
                broken = rows[batch.broken]
                correct[broken] = False
                points[broken] = batch.points.to(points)
                distance[broken] = batch.distance[batch.broken].to(distance)
                stage_of[broken] = place
                found[number] = batch.findings
                seconds += batch.seconds
                left -= len(rows)
                if progress:
                    ahead = left * costs[place] + int(correct.sum()) * sum(costs[place + 1 :])
                    robust = 100 * float(correct.float().mean())
                    progress(total - ahead, total, f"{label}, robust so far {robust:.1f} %")
            findings += itertools.chain.from_iterable(found[i] for i in sorted(found))
        names = tuple(stage.name for stage in stages)
        return Verdicts(correct, distance, stage_of, names, seconds), points, findings

    def _batches(
        self, stage: Attack, batches: Sequence[Tensor], key: str
    ) -> Iterator[tuple[int, BatchResult]]:
        """Each batch of rows attacked by a stage, here or by a process that shares the store."""
        store = self.store

        def finished(i: int) -> BatchResult | None:
            return store.get(f"{key}.{i:05d}", batches[i]) if store else None

        def work(i: int) -> BatchResult:
            batch = self._attack_batch(stage, batches[i], f"{key}.{i:05d}")
            if store:
                store.put(f"{key}.{i:05d}", batch)
            return batch

        yield from share(len(batches), store.folder / "locks" if store else None, finished, work)

    def _attack_batch(self, stage: Attack, rows: Tensor, key: str) -> BatchResult:
        x, y = self.x[rows], self.y[rows]
        start = time.perf_counter()
        digest = hashlib.sha256(f"{self.seed}/{key}".encode()).digest()
        seed = int.from_bytes(digest[:8], "big") >> 1  # manual_seed takes 63 bits
        generator = torch.Generator(x.device).manual_seed(seed)
        with seeded(x.device, seed):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                x_adv = stage(self.prepared, x, y, generator=generator).detach()
            if x_adv.shape != x.shape:
                shapes = f"{tuple(x_adv.shape)} for inputs {tuple(x.shape)}"
                raise ValueError(f"{stage.name} returned {shapes}; the same shape is needed")
            wrong = ~self.correct(x_adv, y)
        findings = warnings_to_findings(caught, stage.name)
        allowed = inside(stage.threat, x_adv, x)
        if outside := int((wrong & ~allowed).sum()):
            message = f"{outside} inputs outside {stage.threat} or the box were not counted"
            findings.append(Finding(f"{stage.name} outside", message))
        broken = wrong & allowed
        distance = torch.where(broken, stage.threat.distance(x_adv, x), 0.0)
        return BatchResult(
            rows.cpu(), broken.cpu(), distance.cpu(), x_adv[broken].cpu(), tuple(findings),
            time.perf_counter() - start,
        )  # fmt: skip


def passes_of(attack: Attack) -> int:
    """The most forward passes of an attack per example; 1000 if it has no `passes`."""
    return sum(getattr(stage, "passes", 1000) for stage in stages_of(attack))


def warnings_to_findings(caught: list[warnings.WarningMessage], name: str) -> list[Finding]:
    """Warnings for users as findings; other warnings are issued again."""
    for w in caught:
        if not issubclass(w.category, UserWarning):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return [Finding(name, str(w.message)) for w in caught if issubclass(w.category, UserWarning)]


class Differentiable(nn.Module):
    """The same outputs; if the model detaches its input, the gradient is zero and not an error."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = check_module(model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, C), with a graph to x."""
        try:
            z = self.model(x.clone())  # the model may work in place
        except RuntimeError as error:  # one that uses numpy refuses a graph
            if not (x.requires_grad and "numpy" in str(error)):
                raise
            z = self.model(x.detach().clone())
        if z.is_inference():  # an inference tensor cannot join a graph
            z = z.clone()
        return z + 0 * x.flatten(1).sum(1, keepdim=True).to(z) if torch.is_grad_enabled() else z


def prepare(model: Model, x: Tensor, y: Tensor) -> Model:
    """The fastest copy (folded, channels last) that has the model's logits and gradients."""
    try:
        plain = copy.deepcopy(check_module(model)).eval().requires_grad_(False)
    except Exception:  # a module may refuse in any way
        return model
    layouts = (True, False) if x.ndim == 4 else (False,)
    for inner, channels_last in itertools.product((fold_batchnorm(plain), plain), layouts):
        if inner is None:
            continue
        try:
            candidate = _Prepared(inner, channels_last)
            if _same(plain, candidate, x[:TRIED], y[:TRIED]):
                return candidate
        except Exception:  # a `view` that wants another memory format, a size that was fixed
            continue
    return plain


class _Prepared(nn.Module):
    """Runs few images at a time, whose activations fit a CPU's cache, in channels-last format."""

    def __init__(self, inner: nn.Module, channels_last: bool) -> None:
        super().__init__()
        self.inner, self.channels_last = inner, channels_last
        if channels_last:  # of a copy: formats belong to tensors, which candidates share
            self.inner = copy.deepcopy(inner).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """As the model: (B, *) → (B, C)."""
        size = max(AT_ONCE, VALUES // x.shape[1:].numel())
        if x.is_cpu and len(x) > size:
            return torch.cat([self(part) for part in x.split(size)])
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return self.inner(x)


def _same(plain: Model, prepared: Model, x: Tensor, y: Tensor) -> bool:
    """Whether logits and gradients are the same up to rounding. x: (B, *); y: (B,)."""
    with torch.no_grad():  # a batch of one finds sizes that tracing has fixed
        wanted, found, alone = plain(x.clone()), prepared(x.clone()), prepared(x[:1].clone())
    allowed = OUTPUTS * (float(wanted.abs().max()) + 1e-12)
    for one, other in ((found, wanted), (alone, wanted[:1])):
        if not float((one - other).abs().max()) <= allowed:
            return False
    # Tracing forgets a `no_grad` inside a model, which would show an attack what the model hides.
    # A little off the examples: flat pixels lie on kinks, where rounding picks one gradient.
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    slope, same = (input_gradient(f, x + 0.01 * noise, y, margin) for f in (plain, prepared))
    return float((same - slope).norm()) <= GRADIENTS * float(slope.norm()) + 1e-12
