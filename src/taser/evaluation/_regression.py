"""Regression under attack: errors in the units of y, example by example."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taser import __version__
from taser._files import Progress, sha256_of_arrays, write_atomically
from taser._names import unknown
from taser.attacks import ATTACKS, Attack, Model, RestartedPGD, Threat
from taser.attacks._threat import inside
from taser.data._dataset import Standardisation, subset
from taser.models._weights import weights_hash
from taser.stein._model_state import check_module, eval_mode

from ._model_checks import check_data
from ._record import Finding, Provenance, described, device_of, seeded
from ._statistics import LEVEL, Interval

CURVE_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the threat's ε


@dataclass(frozen=True, eq=False, repr=False)
class RegressionEvaluation:
    """Predictions of a regression for n examples, clean and under each attack, in units of y.

    attacks: {name: prediction at the worst point that the attack found, x included}.
    """

    threat: Threat
    index: Tensor  # (n,), their rows in the data given
    y: Tensor  # (n,)
    clean: Tensor  # (n,)
    attacks: dict[str, Tensor]  # (n,) each
    findings: tuple[Finding, ...]
    provenance: Provenance
    x_adv: Tensor | None = None  # (n, *): the worst point over all attacks; not in the JSON

    n = property(lambda self: len(self.index))

    @property
    def worst(self) -> Tensor:
        """(n,): for each example the prediction with the largest error, clean or attacked."""
        found = torch.stack([self.clean, *self.attacks.values()])
        return found.gather(0, (found - self.y).abs().argmax(0)[None])[0]

    def errors(self, predictions: Tensor) -> dict[str, Interval]:
        """MSE, MAE and R² with 95 % intervals, by Student's t (for R² of its linear part)."""
        e, spread = predictions - self.y, (self.y - self.y.mean()).square()
        mse, variance = e.square(), spread.mean().clamp_min(1e-30)
        unexplained = mse.mean() / variance
        r2 = 1 - unexplained - (mse - unexplained * spread) / variance
        return {"MSE": mean_interval(mse), "MAE": mean_interval(e.abs()), "R²": mean_interval(r2)}

    @property
    def mse(self) -> float:
        """The mean squared error without an attack."""
        return self.errors(self.clean)["MSE"].value

    @property
    def robust_mse(self) -> float:
        """The mean squared error of the per-example worst case: the figure to quote."""
        return self.errors(self.worst)["MSE"].value

    def rows(self) -> dict[str, Tensor]:
        """The predictions by name: clean, each attack, the worst case."""
        return {"clean": self.clean, **self.attacks, "worst case, per example": self.worst}

    def __repr__(self) -> str:
        listed = (f"{k} {self.errors(v)['MSE'].value:.4g}" for k, v in self.rows().items())
        return f"RegressionEvaluation({self.threat}, n={self.n}: MSE {', '.join(listed)})"

    def to_json(self) -> str:
        """The whole record."""
        errors = {
            name: {kind: asdict(interval) for kind, interval in self.errors(values).items()}
            for name, values in self.rows().items()
        }
        return json.dumps({
            "task": "regression", "n": self.n, "threat": self.threat.numbers(), "errors": errors,
            "findings": [asdict(finding) for finding in self.findings],
            "provenance": asdict(self.provenance), "index": self.index.tolist(),
            "y": self.y.tolist(), "clean": self.clean.tolist(),
            "attacks": {name: values.tolist() for name, values in self.attacks.items()},
        }, indent=1, allow_nan=False)  # fmt: skip


def mean_interval(values: Tensor, level: float = LEVEL) -> Interval:
    """The mean of n independent values with its interval by Student's t. values: (n,)."""
    from scipy.stats import t  # slow to import

    n, mean = len(values), float(values.double().mean())
    error = float(values.double().std()) / n**0.5 if n > 1 else float("inf")
    half_width = float(t.ppf((1 + level) / 2, max(n - 1, 1))) * error
    return Interval(mean, mean - half_width, mean + half_width)


def compare_errors(
    first: RegressionEvaluation, second: RegressionEvaluation
) -> dict[str, Interval]:
    """MSE of the first minus MSE of the second, clean and worst case, paired by example."""
    if first.provenance.data != second.provenance.data or first.threat != second.threat:
        raise ValueError("two regressions are compared on the same examples, within one threat")
    pairs = {"clean": (first.clean, second.clean), "worst case": (first.worst, second.worst)}
    return {
        name: mean_interval((one - first.y).square() - (other - second.y).square())
        for name, (one, other) in pairs.items()
    }


def evaluate_regression(
    model: Model, x: Tensor, y: Tensor, *, threat: Threat | None = None,
    targets: Standardisation | None = None, attacks: Sequence[str | Attack] = ("pgd", "spsa"),
    n: int = 1000, seed: int = 0, batch_size: int = 100, out: Path | str | None = None,
    progress: Progress | None = None,
) -> RegressionEvaluation:  # fmt: skip
    """Raise the squared error of a regression on `n` of the examples x, (N, *), targets y, (N,).

    threat: by default ℓ∞, 0.5, without bounds; targets: how y was standardised, to report errors in
    units of y; attacks: "pgd", "spsa", "spsa-strong", "fgsm", "noise", or :class:`Attack` objects;
    other options: as in :func:`taser.evaluate`. evaluation.json is written into the folder `out`.
    """
    threat = threat or Threat("linf", 0.5, low=None, high=None)
    index = subset(len(x), n)
    device = device_of(model, x)
    if y.shape != x.shape[:1] or not bool(y.isfinite().all()):
        raise ValueError(f"y should be ({len(x)},) finite targets; got {tuple(y.shape)}")
    x, y = x[index].detach().to(device), y[index].to(device)
    findings = check_data(x, torch.zeros_like(y, dtype=torch.int64), threat)
    plan = [_named(attack, threat) if isinstance(attack, str) else attack for attack in attacks]
    model = check_module(model)

    def predicted(points: Tensor) -> Tensor:
        """(n, *) → (n,), predictions of the standardised targets."""
        with eval_mode(model, freeze=True), torch.no_grad():
            parts = [model(part.clone()) for part in points.split(batch_size)]
        if any(len(p) != p.numel() for p in parts) or sum(map(len, parts)) != len(points):
            got = f"y of {y.dtype} and outputs {tuple(parts[0].shape)}"
            wanted = "a regression gives one number an example, a classifier takes class numbers"
            raise ValueError(f"{wanted}, int64; got {got}")
        return torch.cat(parts).reshape(-1)

    clean, worst = predicted(x), x.clone()
    largest, found = (clean - y).abs(), {}
    for number, attack in enumerate(plan):
        points = []
        for start in range(0, len(x), batch_size):
            if progress:
                done = number * len(x) + start
                progress(
                    done, len(plan) * len(x), f"{attack.name}, error so far {largest.mean():.3g}"
                )
            rows = slice(start, start + batch_size)
            generator = torch.Generator(device).manual_seed(seed + start)
            with seeded(device, seed + start):
                points.append(attack(model, x[rows], y[rows], generator=generator).detach())
        moved = torch.cat(points)
        allowed = inside(threat, moved, x)
        if outside := int((~allowed).sum()):
            message = f"{outside} inputs outside {threat} or the box were not counted"
            findings.append(Finding(f"{attack.name} outside", message))
        answers = predicted(moved)
        counts = allowed & ((answers - y).abs() > (clean - y).abs())
        found[attack.name] = torch.where(counts, answers, clean)
        worse = counts & ((answers - y).abs() > largest)
        worst[worse], largest[worse] = moved[worse], (answers - y).abs()[worse]

    def in_units(values: Tensor) -> Tensor:
        values = values.double().cpu()
        return values if targets is None else targets.invert(values[:, None])[:, 0]

    provenance = Provenance(
        seed, batch_size, weights_hash(model),
        sha256_of_arrays([x.numpy(force=True), y.numpy(force=True)]),
        {attack.name: described(attack) for attack in plan},
        {"taser": __version__, "torch": torch.__version__, "numpy": np.__version__},
    )  # fmt: skip
    result = RegressionEvaluation(
        threat, index, in_units(y), in_units(clean),
        {name: in_units(v) for name, v in found.items()},
        tuple(findings), provenance, worst.cpu(),
    )  # fmt: skip
    if out is not None:
        write_atomically(Path(out) / "evaluation.json", result.to_json() + "\n")
    return result


def _named(name: str, threat: Threat) -> Attack:
    if name not in ATTACKS:
        raise unknown("attack on a regression", name, [a for a in ATTACKS if a != "pgd-ce"])
    return ATTACKS[name](threat)


def error_curve(
    model: Model, x: Tensor, y: Tensor, *, threat: Threat,
    attack: Callable[[Threat], Attack] | None = None, factors: Sequence[float] = CURVE_FACTORS,
    **options: Any,
) -> list[tuple[float, float]]:  # fmt: skip
    """(ε, MSE) from ε = 0 on, in rising order; options: as in :func:`evaluate_regression`.

    attack: by default PGD, 20 steps from 2 starts. Errors never fall as ε grows.
    """
    make = attack or (lambda t: RestartedPGD(t, steps=20, restarts=2))
    points: list[tuple[float, float]] = []
    for factor in sorted(factors):
        wider = replace(threat, epsilon=threat.epsilon * factor)
        found = evaluate_regression(model, x, y, threat=wider, attacks=[make(wider)], **options)
        points = points or [(0.0, found.mse)]
        points.append((wider.epsilon, max(found.robust_mse, points[-1][1])))
    return points
