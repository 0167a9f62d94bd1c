"""Certified ℓ2 robustness by randomised smoothing (Cohen, Rosenfeld and Kolter, 2019).

The smoothed classifier g gives x the class that the base classifier f gives x + σz most often, z
standard normal. If that class has probability p > ½, g is constant on the ball of radius σΦ⁻¹(p).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from taser._files import Progress, read_json, sha256_of_arrays, write_atomically
from taser._runtime import combine_seeds, noise_like
from taser.attacks import PGD, Model, Threat
from taser.data._dataset import subset
from taser.models._weights import weights_hash
from taser.scores._score import check_sigma
from taser.stein._model_state import check_module, eval_mode

from ._attack_loop import locked_store
from ._model_checks import check_data, check_model
from ._record import device_of
from ._statistics import Interval, accuracy_interval, probability_bounds

LOOKS = 6  # with a radius that is wanted: after 1/32, 1/16, … of the draws, and after all
ABSTAINED = -1
COLUMNS = ("index", "y", "prediction", "count", "drawn", "radius", "noise_std")  # (n,) each


@dataclass(frozen=True, eq=False)
class Certificates:
    """What is certified of g on n examples; the radius of each can be recomputed from its counts.

    index, y: rows in the data given, and labels. prediction: the class of g, −1 where it abstains.
    count, drawn: how often the class was given, in how many draws. radius: σΦ⁻¹(p), p the lower
    Clopper–Pearson bound of count/drawn at level 1 − alpha/looks; zero where g abstains.
    noise_std: of the noise that was drawn. settings: sigma, alpha, looks, draws, selection, seed,
    and hashes of model, denoiser and data. All tensors are (n,).
    """

    index: Tensor
    y: Tensor
    prediction: Tensor
    count: Tensor
    drawn: Tensor
    radius: Tensor
    noise_std: Tensor
    settings: dict[str, Any]

    def certified(self, radius: float) -> Tensor:
        """(n,) bool: right, and certified for every change of at most this ℓ2 norm."""
        return (self.prediction == self.y) & (self.radius >= radius)

    def accuracy(self, radius: float = 0.0) -> Interval:
        """The share that is certified at a radius; at zero, of right predictions."""
        return accuracy_interval(self.certified(radius))

    @property
    def abstained(self) -> int:
        """On how many examples no class was certified at any radius."""
        return int((self.prediction == ABSTAINED).sum())

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        columns = {name: getattr(self, name).tolist() for name in COLUMNS}
        return {**self.settings, "abstained": self.abstained, **columns}

    @classmethod
    def of(cls, numbers: dict[str, Any]) -> Self:
        """The inverse of :meth:`numbers`."""
        columns = {name: torch.from_numpy(np.array(numbers[name])) for name in COLUMNS}
        settings = {k: v for k, v in numbers.items() if k not in (*COLUMNS, "abstained")}
        return cls(**columns, settings=settings)

    def __repr__(self) -> str:
        right = f"{100 * self.accuracy().value:.1f} % right, {self.abstained} abstained"
        middle = float(self.radius.median())
        return f"Certificates(n={len(self.y)}, {right}, median radius {middle:.3g})"


class NoisyClassifier(nn.Module):
    """f(D(x + σz)) for a draw of z, D the denoiser or nothing. (B, *) → logits (B, C)."""

    def __init__(self, model: Model, sigma: float, denoiser: Any = None) -> None:
        super().__init__()
        self.model, self.sigma = check_module(model), check_sigma(sigma)
        if denoiser is not None and not hasattr(denoiser, "at"):
            wanted = "taser.scores.Denoiser.load(file), or from_diffusers(…)"
            got = type(denoiser).__name__
            raise TypeError(f"denoiser should be one such as {wanted}; got {got}")
        self.score = None if denoiser is None else denoiser.at(sigma=sigma)

    def denoise(self, noisy: Tensor) -> Tensor:
        """E[x | x + σz], (B, *)."""
        return noisy if self.score is None else self.score.denoise(noisy, self.sigma)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.model(self.denoise(x + self.sigma * z)).float()

    @torch.no_grad()
    def votes(
        self, x: Tensor, draws: int, generator: torch.Generator, batch_size: int
    ) -> tuple[Tensor, float]:
        """How often each class is given to one example x, (1, *): (C,); and Σ‖z‖²/d over draws."""
        counts: Any = 0
        squares = 0.0
        for start in range(0, draws, batch_size):
            z = noise_like(x.expand(min(draws - start, batch_size), *x.shape[1:]), generator)
            logits = self(x, z)
            counts += logits.argmax(1).bincount(minlength=logits.shape[1]).cpu()
            squares += float(z.double().square().flatten(1).mean(1).sum())
        return counts, squares


def certify(
    model: Model, x: Tensor, y: Tensor, *, sigma: float, denoiser: Any = None,
    radius: float | None = None, n: int = 500, draws: int = 10_000, selection: int = 100,
    alpha: float = 0.001, box: tuple[float | None, float | None] = (0.0, 1.0), seed: int = 0,
    batch_size: int = 1000, out: Path | str | None = None, progress: Progress | None = None,
) -> Certificates:  # fmt: skip
    """Certify `model` on `n` of the examples x, (N, *), with labels y, (N,), by σ = `sigma`.

    `selection` draws choose the class, `draws` others bound its probability from below at level
    1 − alpha (Clopper–Pearson).

    denoiser: of :mod:`taser.scores`, in front of the model, so that a network that was never
    trained with noise can be certified (Salman et al., 2020; Carlini et al., 2022).

    radius: the one that matters. Draws end as soon as it is certified or cannot be reached; the
    bounds after 1/32, 1/16, …, all of the draws each have level 1 − alpha/6, so that together
    they hold at 1 − alpha. Without it every example gets all draws and its largest radius.

    n, seed, out, progress: as for :func:`taser.evaluate`, counted in draws. box: the range of x.
    The noise of an example depends on seed, batch_size and its row alone.
    """
    noisy = NoisyClassifier(model, sigma, denoiser)
    looks = _looks(sigma, radius, draws, selection, alpha)
    index, device = subset(len(x), n), device_of(model, x)
    x, y = x[index].detach().to(device), y[index]
    classes = _check(noisy, x, y.to(device), box)
    settings: dict[str, Any] = {
        "sigma": sigma, "alpha": alpha, "looks": len(looks), "draws": draws,
        "selection": selection, "wanted_radius": radius, "seed": seed, "batch_size": batch_size,
        "classes": classes, "weights": weights_hash(noisy.model),
        "data": sha256_of_arrays([x.numpy(force=True)]),
        "denoiser": None if noisy.score is None else weights_hash(noisy.score),
    }  # fmt: skip
    total, rows = len(x) * (selection + draws), []
    with locked_store(out, settings) as store, eval_mode(noisy, freeze=True):
        finished = _finished(store.folder / "examples.jsonl") if store else {}
        for i, (row, label) in enumerate(zip(index.tolist(), y.tolist(), strict=True)):
            if row not in finished:
                generator = torch.Generator(device).manual_seed(combine_seeds(seed, row))
                found = _certify_one(
                    noisy, x[i : i + 1], looks, selection, alpha, radius, generator, batch_size
                )
                finished[row] = {"index": row, "y": label, **found}
                if store:
                    with (store.folder / "examples.jsonl").open("a") as file:
                        file.write(json.dumps(finished[row]) + "\n")
            rows.append(finished[row])
            if progress:
                done, label = (i + 1) * (selection + draws), f"example {i + 1} of {len(x)}"
                progress(done, total, f"σ = {sigma:g}, {label}")
        columns = {name: [entry[name] for entry in rows] for name in rows[0]}
        result = Certificates.of({**settings, **columns})
        if store:
            content = json.dumps(result.numbers(), indent=1, allow_nan=False)
            write_atomically(store.folder / "certificates.json", content + "\n")
    return result


def _certify_one(
    noisy: NoisyClassifier, x: Tensor, looks: list[int], selection: int, alpha: float,
    radius: float | None, generator: torch.Generator, batch_size: int,
) -> dict[str, Any]:  # fmt: skip
    """One example x, (1, *): its class, counts and radius."""
    guess = int(noisy.votes(x, selection, generator, batch_size)[0].argmax())
    level, wanted = alpha / len(looks), NormalDist().cdf((radius or 0.0) / noisy.sigma)
    count, drawn, squares = 0, 0, 0.0
    for look in looks:
        votes, more = noisy.votes(x, look - drawn, generator, batch_size)
        count, drawn, squares = count + int(votes[guess]), look, squares + more
        low, high = probability_bounds(count, drawn, level)
        if low >= wanted > 0.5 or high < wanted:
            break
    found = certified_radius(count, drawn, level, noisy.sigma)
    return {
        "prediction": guess if found > 0 else ABSTAINED, "count": count, "drawn": drawn,
        "radius": found, "noise_std": noisy.sigma * math.sqrt(squares / drawn),
    }  # fmt: skip


def certified_radius(count: int, drawn: int, alpha: float, sigma: float) -> float:
    """σΦ⁻¹(p), p the lower Clopper–Pearson bound at level 1 − alpha; zero for p ≤ ½."""
    low = probability_bounds(count, drawn, alpha)[0]
    return sigma * NormalDist().inv_cdf(low) if low > 0.5 else 0.0


def _looks(
    sigma: float, radius: float | None, draws: int, selection: int, alpha: float
) -> list[int]:
    """After how many draws the bounds are computed; or raise for settings that certify nothing."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha should lie in (0, ½); got {alpha}")
    if selection < 1 or draws < 1:
        raise ValueError(f"selection and draws should be at least 1; got {selection}, {draws}")
    if radius is not None and not 0 < radius < math.inf:
        raise ValueError(f"radius should be positive and finite, or None; got {radius}")
    times = 1 if radius is None else LOOKS
    looks = sorted({max(1, draws // 2**k) for k in range(times)})
    largest = certified_radius(draws, draws, alpha / len(looks), sigma)
    if largest <= (radius or 0.0):
        wanted = f"radius {radius:g}" if radius else "any radius"
        raise ValueError(
            f"{draws} draws at sigma={sigma:g} and alpha={alpha:g} certify a radius of at most "
            f"{largest:.3g}, too few for {wanted}: give more draws or a larger sigma"
        )
    return looks


def _check(
    noisy: NoisyClassifier, x: Tensor, y: Tensor, box: tuple[float | None, float | None]
) -> int:
    """Raise for data, a model or a denoiser that cannot be certified; the number of classes."""
    low, high = box
    if low is not None and high is not None and noisy.sigma > high - low:
        beyond = f"is more than the range [{low:g}, {high:g}] of the inputs"
        raise ValueError(f"sigma={noisy.sigma:g} {beyond}; did you mean {noisy.sigma:g}/255?")
    check_data(x, y, Threat("l2", noisy.sigma, low, high))
    classes, odd = check_model(noisy.model, x, y)
    for finding in odd:
        if finding.name in ("stochastic", "coupled"):
            raise ValueError(f"only a deterministic classifier can be certified: {finding.message}")
    if noisy.score is not None:
        few = x[:32]
        z = noise_like(few, torch.Generator(x.device).manual_seed(0))
        with eval_mode(noisy, freeze=True), torch.no_grad():
            error = float((noisy.denoise(few + noisy.sigma * z) - few).square().mean().sqrt())
        if not error < noisy.sigma:
            raise ValueError(
                f"the denoiser leaves an error of {error:.3g} at sigma={noisy.sigma:g}, more than "
                "the noise: it is of other data, or of inputs in another range, such as [-1, 1]"
            )
    return classes


def _finished(path: Path) -> dict[int, dict[str, Any]]:
    """The examples of an earlier run; a last line that was cut short is done again."""
    if not path.exists():
        return {}
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    write_atomically(path, "".join(whole))
    return {entry["index"]: entry for entry in map(json.loads, whole)}


def read_certificates(folder: Path) -> Certificates:
    """What :func:`certify` wrote into `out`."""
    return Certificates.of(read_json(folder / "certificates.json", "sigma", "radius"))


class _Averaged(nn.Module):
    """log mean_k softmax f(D(x + σz_k)), (B, *) → (B, C): g's probabilities, differentiable."""

    def __init__(self, noisy: NoisyClassifier, draws: int, generator: torch.Generator) -> None:
        super().__init__()
        self.noisy, self.draws, self.generator = noisy, draws, generator

    def forward(self, x: Tensor) -> Tensor:
        points = x.repeat(self.draws, *[1] * (x.ndim - 1))
        logits = self.noisy(points, noise_like(points, self.generator))
        logs = logits.log_softmax(1).view(self.draws, len(x), -1)
        return logs.logsumexp(0) - math.log(self.draws)


@torch.no_grad()
def attack_smoothed(
    model: Model, x: Tensor, certificates: Certificates, radii: Sequence[float], *,
    denoiser: Any = None, steps: int = 20, gradient_draws: int = 16, draws: int = 1000,
    batch_size: int = 256, box: tuple[float | None, float | None] = (0.0, 1.0),
    progress: Progress | None = None,
) -> dict[float, Interval]:  # fmt: skip
    """Accuracy of g under an ℓ2 attack at each radius: what certified accuracy cannot exceed.

    PGD on the mean probability of `gradient_draws` draws (Salman et al., 2019). An example counts
    as broken if at the attacked point another class has the most of `draws` votes, significantly at
    the level alpha. x: the data that :func:`certify` was given. Right answers that are certified at
    a radius need no attack there, and broken ones stay broken at larger radii.
    """
    from scipy.stats import binomtest  # slow to import

    settings = certificates.settings
    noisy = NoisyClassifier(model, settings["sigma"], denoiser)
    device = device_of(model, x)
    generator = torch.Generator(device).manual_seed(combine_seeds(settings["seed"], 1))
    robust = certificates.prediction == certificates.y
    found: dict[float, Interval] = {}
    with eval_mode(noisy, freeze=True):
        for number, radius in enumerate(sorted(radii)):
            pgd = PGD(Threat("l2", radius, *box), steps, start="clean")
            rows = (robust & ~certificates.certified(radius)).nonzero()[:, 0]
            at_once = max(1, batch_size // gradient_draws)
            for part in rows.split(at_once) if len(rows) else ():
                clean = x[certificates.index[part]].to(device)
                labels = certificates.y[part].to(device)
                averaged = _Averaged(noisy, gradient_draws, generator)
                points = pgd(averaged, clean, labels, generator=generator)
                for row, point, label in zip(part, points.split(1), labels, strict=True):
                    votes = noisy.votes(point, draws, generator, batch_size)[0]
                    (first, second), (top, _) = (pair.tolist() for pair in votes.topk(2))
                    sure = binomtest(first, first + second).pvalue <= settings["alpha"]
                    robust[row] = not (sure and top != int(label))
            found[radius] = accuracy_interval(robust)
            if progress:
                progress(number + 1, len(radii), f"attack at radius {radius:g}")
    return found
