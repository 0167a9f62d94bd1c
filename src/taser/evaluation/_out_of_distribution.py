"""Detecting out-of-distribution inputs by the Stein residual, and by the usual statistics."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser._files import Progress
from taser.attacks import PGD, Threat, lengths
from taser.probes import Margin, Probed
from taser.scores import Score
from taser.stein import stein_residual
from taser.stein._checks import Operator
from taser.stein._model_state import eval_mode

from ._corruptions import mixed_corruptions
from ._record import device_of
from ._statistics import Interval, auroc

RESIDUALS: dict[str, Operator] = {
    "Stein residual": "langevin", "first-order residual": "first_order",
}  # fmt: skip


@dataclass(frozen=True)
class Detection:
    """AUROC of one statistic between n inputs of the data and m inputs of the set `against`."""

    statistic: str
    against: str
    auroc: Interval
    n: int
    m: int


@dataclass(frozen=True)
class OutOfDistribution:
    """Every statistic against every set of out-of-distribution inputs."""

    detections: tuple[Detection, ...]

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


@torch.no_grad()
def ood_statistics(
    model: nn.Module, score: Score, x: Tensor, *, probes: int = 4, batch_size: int = 250,
    seed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Statistics of each input, (n,); the usual ones are larger out of distribution.

    The residuals Δm + s·∇m, and s·∇m alone, use the margin m of the predicted class, not a label.
    Max softmax: −max_k p_k (Hendrycks and Gimpel, 2017); energy:
    −LSE(z) (Liu et al., 2020); score norm: ‖s(x)‖₂.
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    options: dict[str, Any] = {"backend": "auto", "probes": probes, "generator": generator}
    parts: list[dict[str, Tensor]] = []
    with eval_mode(model, freeze=True):
        for rows in x.split(batch_size):
            z, s = model(rows.clone()).float(), score(rows)
            f = Probed(model, Margin(), z.argmax(1))
            residuals = {
                name: stein_residual(f, rows, s, operator=operator, **options)
                for name, operator in RESIDUALS.items()
            }
            usual = {
                "max softmax": -z.softmax(1).amax(1), "energy": -z.logsumexp(1),
                "score norm": lengths(s).flatten(),
            }  # fmt: skip
            parts.append(residuals | usual)
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def out_of_distribution(
    model: nn.Module, score: Score, x: Tensor, outside: Mapping[str, Tensor], *, reference: Tensor,
    seed: int = 0, progress: Progress | None = None,
) -> OutOfDistribution:  # fmt: skip
    """The AUROC of each statistic for x, (n, *), against each set of `outside`, (m, *).

    reference: training inputs, (N, *), for the mean of a residual r; "centred" is |r − mean|. The
    intervals are wrong if `outside` was made from the examples x.
    """
    sets = {"training data": reference, "the data": x, **outside}
    found: list[dict[str, Tensor]] = []
    for done, (name, inputs) in enumerate(sets.items()):
        if progress:
            progress(done, len(sets), name)
        inputs = inputs.to(device_of(model, inputs))
        statistics = ood_statistics(model, score, inputs, seed=seed)
        usual = found[0] if found else statistics
        centred = {f"{r}, centred": (statistics[r] - usual[r].mean()).abs() for r in RESIDUALS}
        found.append(statistics | centred)
    _, inside, *others = found
    detections = (
        Detection(s, name, auroc(inside[s], other[s]), len(x), len(outside[name]))
        for name, other in zip(outside, others, strict=True)
        for s in inside
    )
    return OutOfDistribution(tuple(detections))


def perturbed(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, *, severity: int = 3, seed: int = 0
) -> dict[str, Tensor]:
    """x, (n, C, H, W), corrupted, and attacked by PGD: two sets for :func:`out_of_distribution`."""
    attack = PGD(threat, steps=20, step_size=threat.epsilon / 8)
    generator = torch.Generator(x.device).manual_seed(seed)
    batches = zip(x.split(256), y.split(256), strict=True)
    attacked = [attack(model, *batch, generator=generator) for batch in batches]
    return {
        f"corrupted (severity {severity})": mixed_corruptions(x, severity, seed=seed),
        f"attacked ({threat})": torch.cat(attacked),
    }


def resized(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images of another data set, (B, C, H, W), brought to the (C, H, W) of this one."""
    if x.ndim != 4 or len(shape) != 3:
        got = f"inputs of shape {tuple(x.shape[1:])} for {shape}"
        raise ValueError(f"only images, (C, H, W), can be brought to the size of others; got {got}")
    channels, *size = shape
    if x.shape[1] != channels:
        x = x.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if list(x.shape[2:]) == size:
        return x
    return F.interpolate(x, size, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
