"""The Stein residual as a sign that an input is not of the data, beside the usual signs.

Over data of the score's law the residual has mean zero, whatever the network; so a residual far
from the mean that it has on training data says that input, network and score do not fit together.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from taser._progress import Progress
from taser.attacks import lengths
from taser.probes import Margin, Probed
from taser.scores import Score
from taser.stein import stein_residual
from taser.stein._model_state import eval_mode

from ._record import device_of
from ._statistics import Interval, auroc

RESIDUALS = ("Stein residual", "first-order residual")


@dataclass(frozen=True)
class Detection:
    """How well `sign` tells `against` (m inputs) from the data (n inputs)."""

    sign: str
    against: str
    auroc: Interval
    n: int
    m: int


@dataclass(frozen=True)
class OutOfDistribution:
    """Every sign against every set of inputs that are not of the data."""

    detections: tuple[Detection, ...]

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


@torch.no_grad()
def signs(
    model: Callable[[Tensor], Tensor],
    score: Score,
    x: Tensor,
    *,
    probes: int = 4,
    batch_size: int = 250,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Numbers that may tell foreign inputs, each (n,); for the usual ones larger is more foreign.

    The residuals are those of the margin probe for the class that the model predicts, which needs
    no label: Δm + s·∇m, and s·∇m alone. Max softmax: −max_k p_k (Hendrycks and Gimpel, 2017);
    energy: −LSE(z) (Liu et al., 2020); score norm: ‖s(x)‖₂.
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    parts: list[dict[str, Tensor]] = []
    with eval_mode(model, freeze=True):
        for rows in x.split(batch_size):
            z, s = model(rows.clone()).float(), score(rows)
            f = Probed(model, Margin(), z.argmax(1))
            langevin, first = (
                stein_residual(
                    f, rows, s, operator=operator, backend="auto", probes=probes,
                    generator=generator,
                )
                for operator in ("langevin", "first_order")
            )  # fmt: skip
            parts.append({
                "Stein residual": langevin,
                "first-order residual": first,
                "max softmax": -z.softmax(1).amax(1),
                "energy": -z.logsumexp(1),
                "score norm": lengths(s).flatten(),
            })  # fmt: skip
    return {sign: torch.cat([part[sign] for part in parts]).double() for sign in parts[0]}


def out_of_distribution(
    model: Callable[[Tensor], Tensor],
    score: Score,
    x: Tensor,
    outside: Mapping[str, Tensor],
    *,
    reference: Tensor,
    probes: int = 4,
    batch_size: int = 250,
    seed: int = 0,
    progress: Progress | None = None,
) -> OutOfDistribution:
    """The AUROC of each sign, for x, (n, *), against each set of `outside`, (m, *).

    reference: training inputs, (N, *), for the mean of a residual r; "centred" is |r − mean|. The
    inputs outside should not be made of the same examples x, or the intervals are not right.
    """

    def asked(inputs: Tensor, done: int, label: str) -> dict[str, Tensor]:
        if progress:
            progress(done, len(outside) + 2, label)
        inputs = inputs.to(device_of(model, inputs))
        return signs(model, score, inputs, probes=probes, batch_size=batch_size, seed=seed)

    usual = asked(reference, 0, "training data")
    inside = _with_centred(asked(x, 1, "the data"), usual)
    detections = []
    for done, (name, inputs) in enumerate(outside.items(), 2):
        found = _with_centred(asked(inputs, done, name), usual)
        for sign in inside:
            area = auroc(inside[sign], found[sign], seed=seed)
            detections.append(Detection(sign, name, area, len(x), len(inputs)))
    return OutOfDistribution(tuple(detections))


def _with_centred(found: dict[str, Tensor], usual: dict[str, Tensor]) -> dict[str, Tensor]:
    """The signs, and how far each residual is from its mean on training data."""
    return found | {
        f"{sign}, centred": (found[sign] - usual[sign].mean()).abs() for sign in RESIDUALS
    }


def shaped_like(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Pictures of another data set, (B, C, H, W), brought to the (C, H, W) of this one."""
    if x.ndim != 4 or len(shape) != 3:
        raise ValueError(
            "only pictures, (C, H, W), can be brought to the size of others; got inputs of shape "
            f"{tuple(x.shape[1:])} for {shape}"
        )
    channels, *size = shape
    if x.shape[1] != channels:
        x = x.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if list(x.shape[2:]) == size:
        return x
    return F.interpolate(x, size, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
