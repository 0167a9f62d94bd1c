"""Certified ℓ2 robustness by randomised smoothing (Cohen, Rosenfeld and Kolter, 2019).

The smoothed classifier is g(x) = argmax_c P(f(x + σz) = c), z ~ N(0, I), f the base classifier. If
the class has probability p > ½, g is constant on the ball of radius σΦ⁻¹(p).
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
from taser._runtime import combine_seeds, has_bfloat16, noise_like
from taser.attacks import PGD, Model, Threat
from taser.data._dataset import subset
from taser.models import TwoLogits, Wrapped
from taser.models._weights import weights_hash
from taser.scores._score import Precision, check_sigma
from taser.stein._model_state import check_module, eval_mode

from ._attack_loop import open_store, prepare, share
from ._model_checks import check_data, check_model
from ._record import device_of
from ._statistics import (
    Interval,
    accuracy_interval,
    difference_interval,
    mcnemar,
    probability_bounds,
)

FIRST = 50  # draws before the first bound, at least
FUTILE = 0.01  # level of the upper bounds that end draws; certificates do not depend on them
TOGETHER = 8  # examples in a batch, in a file, and for one process at a time
CHUNK = 64  # draws of an example's noise at once, whatever the batch
COMPARED = 32  # draws per example for the error of the fast network's logits
ABSTAINED = -1
COLUMNS = ("index", "y", "prediction", "count", "drawn", "radius", "noise_std")  # (n,) each


@dataclass(frozen=True, eq=False)
class Certificates:
    """Certificates of g on n examples; every radius can be recomputed from the counts.

    index, y: rows in the data, and labels. prediction: the class of g, −1 where it abstains. count,
    drawn: votes for that class, and all votes. radius: σΦ⁻¹(p), p the lower Clopper–Pearson bound
    of count/drawn at the level in settings["looks"] for `drawn`; zero where g abstains. noise_std:
    standard deviation of the drawn noise. All are (n,).
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
        """(n,) bool: correct, and certified for every change of less than this ℓ2 norm."""
        return (self.prediction == self.y) & (self.radius >= radius)

    def accuracy(self, radius: float = 0.0) -> Interval:
        """The share that is certified at a radius; at zero, the share of correct predictions."""
        return accuracy_interval(self.certified(radius))

    def difference(self, other: Self, radius: float = 0.0) -> tuple[Interval, float]:
        """This certified accuracy minus another's on the same examples; McNemar's p-value."""
        mine, its = (c.settings["data"] for c in (self, other))
        if mine != its or not torch.equal(self.y, other.y):
            raise ValueError("the two were certified on other examples: they cannot be compared")
        pair = self.certified(radius), other.certified(radius)
        return difference_interval(*pair), mcnemar(*pair)

    @property
    def abstained(self) -> int:
        """The number of examples on which no class was certified at any radius."""
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
    """f(D(x + σz)) for a draw of z, D the denoiser or the identity: (B, *) → logits (B, C)."""

    def __init__(self, model: Model, sigma: float, denoiser: Any = None) -> None:
        super().__init__()
        self.model, self.sigma = check_module(TwoLogits.where_said(model)), check_sigma(sigma)
        if denoiser is not None and not hasattr(denoiser, "at"):
            wanted = "taser.scores.Denoiser.load(file), or from_diffusers(…)"
            got = type(denoiser).__name__
            raise TypeError(f"denoiser should be such as {wanted}; got {got}")
        self.score = None if denoiser is None else denoiser.at(sigma=sigma)
        self.fast: Model = self.model
        self.reduced, self.unsure = False, -1.0

    def forward(self, x: Tensor, z: Tensor | None = None, fast: bool = False) -> Tensor:
        noisy, model = x if z is None else x + self.sigma * z, self.fast if fast else self.model
        with torch.autocast(x.device.type, torch.bfloat16, enabled=fast and self.reduced):
            found = model(self.score.denoise(noisy, self.sigma) if self.score else noisy)
        return found.float() if isinstance(found, Tensor) else found

    def accelerate(self, x: Tensor, y: Tensor, precision: Precision) -> None:
        """Vote with a faster copy of the model, in bfloat16 if `precision` allows it."""
        self.fast = prepare(self.model, x, y)
        chosen = precision == "auto" and has_bfloat16(x.device)
        self.reduced = precision == "bfloat16" or chosen

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Measure the error e of the fast logits at noisy copies of the examples x, (k, *).

        It cannot exchange logits more than 2e apart. Below 4e the original model decides.
        """
        x = x.repeat(COMPARED, *[1] * (x.ndim - 1))
        z = noise_like(x, torch.Generator(x.device).manual_seed(0))
        self.unsure = 4 * float((self(x, z, fast=True) - self(x, z)).abs().max())

    def classes_of(self, x: Tensor, z: Tensor) -> tuple[Tensor, int]:
        """The original model's class of each x + σz, (B,); and the number of classes."""
        logits = self(x, z, fast=True)
        (first, second), found = logits.topk(2).values.unbind(1), logits.argmax(1)
        close = (~(first - second > self.unsure)).nonzero()[:, 0]
        if len(close):
            found[close] = self(x[close], z[close]).argmax(1)
        return found, logits.shape[1]

    @torch.no_grad()
    def votes(
        self, x: Tensor, draws: int, generators: Sequence[torch.Generator], batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Votes for each class on k examples x, (k, *): (k, C); and Σ‖z‖²/d, (k,).

        Each example has a generator, so its noise does not depend on the batch.
        """
        chunks = [(i, min(CHUNK, draws - start))
                  for i in range(len(x)) for start in range(0, draws, CHUNK)]  # fmt: skip
        counts: Any = 0
        squares = torch.zeros(len(x), dtype=torch.float64)
        at_once = max(1, batch_size // CHUNK)
        for start in range(0, len(chunks), at_once):
            part = chunks[start : start + at_once]
            z = torch.cat([noise_like(x[i].expand(m, *x.shape[1:]), generators[i])
                           for i, m in part])  # fmt: skip
            rows = torch.tensor([i for i, m in part for _ in range(m)], device=x.device)
            found, classes = self.classes_of(x[rows], z)
            votes = (rows * classes + found).bincount(minlength=len(x) * classes)
            counts += votes.view(len(x), classes).cpu()
            squares.index_add_(0, rows.cpu(), z.double().square().flatten(1).mean(1).cpu())
        return counts, squares


@dataclass(frozen=True)
class Sampling:
    """When bounds are computed, and when the draws for an example end.

    looks: {draws: level}, at draws, draws/2, draws/4, …, at least 50. The levels sum to α, so that
    all bounds hold together at 1 − α (union bound); the last level is α/2. Without radii there is
    only the last. wanted: (Φ(radius/σ), share of all draws that certifies it) for each radius that
    can be reached.
    """

    sigma: float
    looks: dict[int, float]
    wanted: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, sigma: float, radii: Sequence[float], draws: int, alpha: float) -> Self:
        """Raise if no radius, or none of the `radii`, can be certified."""
        from scipy.stats import binom  # slow to import

        if not 0 < alpha < 0.5:
            raise ValueError(f"alpha should lie in (0, ½); got {alpha}")
        if any(not 0 < radius < math.inf for radius in radii):
            raise ValueError(f"radii should be positive and finite; got {list(radii)}")
        sizes = [draws]
        while radii and sizes[0] // 2 >= FIRST:
            sizes.insert(0, sizes[0] // 2)
        early = alpha / 2 / max(1, len(sizes) - 1)
        looks = dict.fromkeys(sizes, early) | {draws: alpha / 2 if len(sizes) > 1 else alpha}
        largest = certified_radius(draws, draws, looks[draws], sigma)
        if largest < min(radii, default=0.0) or largest == 0:
            wanted = f"radius {min(radii):g}" if radii else "any radius"
            raise ValueError(
                f"{draws} draws at sigma={sigma:g} and alpha={alpha:g} certify a radius of at most "
                f"{largest:.3g}, too few for {wanted}: give more draws or a larger sigma"
            )
        shares = [NormalDist().cdf(radius / sigma) for radius in radii if radius <= largest]
        needed = [(float(binom.isf(looks[draws], draws, p)) + 1) / draws for p in shares]
        return cls(sigma, looks, tuple(zip(shares, needed, strict=True)))

    def decided(self, count: int, drawn: int) -> bool:
        """Whether every radius is certified, or unlikely to be."""
        low = probability_bounds(count, drawn, self.looks[drawn])[0]
        high = probability_bounds(count, drawn, FUTILE)[1]
        return all(low >= p or high < needed for p, needed in self.wanted)


def certify(
    model: Model, x: Tensor, y: Tensor, *, sigma: float, denoiser: Any = None,
    radii: Sequence[float] = (), n: int = 500, draws: int = 10_000, selection: int = 100,
    alpha: float = 0.001, box: tuple[float | None, float | None] = (0.0, 1.0), seed: int = 0,
    precision: Precision = "auto", batch_size: int = 1000, out: Path | str | None = None,
    progress: Progress | None = None,
) -> Certificates:  # fmt: skip
    """Certify `model` on `n` of the examples x, (N, *), with labels y, (N,), by σ = `sigma`.

    `selection` draws choose the class, at most `draws` others bound its probability from below at
    level 1 − alpha (Clopper–Pearson).

    denoiser: from :mod:`taser.scores`, applied before the model, to certify a network that was
    never trained with noise (Salman et al., 2020; Carlini et al., 2022).

    radii: the radii of interest. Draws for an example end as soon as every radius is certified or
    unlikely to be, by bounds after draws, draws/2, draws/4, … that hold together at 1 − alpha.
    Without radii every example gets all draws and its largest radius.

    precision: "bfloat16" votes in half precision, "auto" where the hardware has it. If rounding
    could exchange the two largest logits, the model decides in full precision.

    n, seed, progress: as for :func:`taser.evaluate`, counted in draws. box: the range of x. out: a
    folder for finished examples, which several processes may share. The noise of an example depends
    only on `seed` and its row.
    """
    noisy = NoisyClassifier(model, sigma, denoiser)
    radii = sorted(float(radius) for radius in radii)
    counts = {"selection": selection, "draws": draws, "n": n, "batch_size": batch_size}
    if low := [f"{name}={count}" for name, count in counts.items() if count < 1]:
        raise ValueError(f"{', '.join(counts)} should be at least 1; got {', '.join(low)}")
    sampling = Sampling.of(noisy.sigma, radii, draws, alpha)
    index, device = subset(len(x), n), device_of(model, x)
    x, y = x[index].detach().to(device), y[index]
    classes = _check(noisy, x, y.to(device), box)
    settings: dict[str, Any] = {
        "sigma": sigma, "alpha": alpha, "looks": [list(look) for look in sampling.looks.items()],
        "draws": draws, "selection": selection, "radii": radii, "seed": seed,
        "precision": precision, "classes": classes, **_hashes(noisy, x),
    }  # fmt: skip
    store = open_store(out, settings)  # other settings are refused
    folder = store.folder if store else None
    noisy.accelerate(x, y.to(device), precision)

    groups = torch.arange(len(x)).split(TOGETHER)

    def path_of(i: int) -> Path:
        return Path(folder or "") / "examples" / f"{i:05d}.json"

    def finished(i: int) -> list[dict[str, Any]] | None:
        there = folder is not None and path_of(i).exists()
        return read_json(path_of(i), "examples")["examples"] if there else None

    def work(i: int) -> list[dict[str, Any]]:
        part = groups[i]
        noisy.calibrate(x[part])
        generators = [torch.Generator(device).manual_seed(combine_seeds(seed, row))
                      for row in index[part].tolist()]  # fmt: skip
        found = _certify_group(noisy, x[part], sampling, selection, generators, batch_size)
        labelled = zip(index[part].tolist(), y[part].tolist(), found, strict=True)
        entries = [{"index": row, "y": label, **entry} for row, label, entry in labelled]
        if folder:
            write_atomically(path_of(i), json.dumps({"examples": entries}) + "\n")
        return entries

    rows: list[Any] = [{}] * len(x)
    done, each = 0, selection + draws
    with eval_mode(noisy, freeze=True):
        for i, entries in share(len(groups), folder and folder / "locks", finished, work):
            part = groups[i]
            rows[int(part[0]) : int(part[-1]) + 1] = entries
            done += len(part)
            if progress:
                label = f"σ = {sigma:g}, example {done} of {len(x)}"
                progress(done * each, len(x) * each, label)
    result = Certificates.of({**settings, **{name: [r[name] for r in rows] for name in COLUMNS}})
    if folder:
        content = json.dumps(result.numbers(), indent=1, allow_nan=False)
        write_atomically(folder / "certificates.json", content + "\n")
    return result


def _certify_group(
    noisy: NoisyClassifier, x: Tensor, sampling: Sampling, selection: int,
    generators: list[torch.Generator], batch_size: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """k examples, (k, *): the class, the counts and the radius of each."""
    guess = noisy.votes(x, selection, generators, batch_size)[0].argmax(1).tolist()
    left, before = list(range(len(x))), 0
    count, squares, entries = [0] * len(x), [0.0] * len(x), [dict[str, Any]()] * len(x)
    for look, level in sampling.looks.items():
        remaining = [generators[i] for i in left]
        votes, more = noisy.votes(x[left], look - before, remaining, batch_size)
        for place, i in enumerate(left):
            count[i] += int(votes[place, guess[i]])
            squares[i] += float(more[place])
            radius = certified_radius(count[i], look, level, noisy.sigma)
            entries[i] = {
                "prediction": guess[i] if radius > 0 else ABSTAINED, "count": count[i],
                "drawn": look, "radius": radius,
                "noise_std": noisy.sigma * math.sqrt(squares[i] / look),
            }  # fmt: skip
        left, before = [i for i in left if not sampling.decided(count[i], look)], look
        if not left:
            break
    return entries


def certified_radius(count: int, drawn: int, alpha: float, sigma: float) -> float:
    """σΦ⁻¹(p), p the lower Clopper–Pearson bound at level 1 − alpha; zero for p ≤ ½."""
    low = probability_bounds(count, drawn, alpha)[0]
    return sigma * NormalDist().inv_cdf(low) if low > 0.5 else 0.0


def _check(
    noisy: NoisyClassifier, x: Tensor, y: Tensor, box: tuple[float | None, float | None]
) -> int:
    """The number of classes; raise for data, a model or a denoiser that cannot be certified."""
    low, high = box
    if low is not None and high is not None and noisy.sigma > high - low:
        beyond = f"is more than the range [{low:g}, {high:g}] of the inputs"
        raise ValueError(f"sigma={noisy.sigma:g} {beyond}; did you mean {noisy.sigma:g}/255?")
    check_data(x, y, Threat("l2", noisy.sigma, low, high))
    classes, odd = check_model(noisy, x, y)
    for finding in odd:
        if finding.name in ("stochastic", "coupled"):
            raise ValueError(f"only a deterministic classifier can be certified: {finding.message}")
    if noisy.score is not None:
        with eval_mode(noisy, freeze=True), torch.no_grad():
            _check_denoiser(noisy.score.denoise, noisy.sigma, x[:32], pixels=box == (0, 1))
    return classes


def _check_denoiser(denoise: Any, sigma: float, x: Tensor, *, pixels: bool) -> None:
    """Raise if the denoiser was trained on other data, or in other coordinates than x, (B, *)."""
    noisy = x + sigma * noise_like(x, torch.Generator(x.device).manual_seed(0))

    def error(denoised: Tensor) -> float:
        return float((denoised - x).square().mean().sqrt())

    found = error(denoise(noisy, sigma))
    if not found < sigma:
        raise ValueError(
            f"the denoiser leaves an error of {found:.3g} at sigma={sigma:g}, more than the noise: "
            "it was trained on other data, or on inputs in another range, such as [-1, 1]"
        )
    others = {  # the denoiser's range, if it was taken for the other
        "[-1, 1]": (denoise(2 * noisy - 1, 2 * sigma) + 1) / 2,
        "[0, 1]": 2 * denoise((noisy + 1) / 2, sigma / 2) - 1,
    }
    for coordinates, denoised in others.items() if pixels else ():
        if (lower := error(denoised)) < 0.95 * found:
            raise ValueError(
                f"the denoiser leaves an error of {found:.3g} at sigma={sigma:g}, and {lower:.3g} "
                f"if its inputs are in {coordinates}: give its coordinates, as "
                "taser.scores.from_edm takes them"
            )


def read_certificates(folder: Path) -> Certificates:
    """What :func:`certify` wrote into `out`."""
    return Certificates.of(read_json(folder / "certificates.json", "sigma", "radius"))


def _log_mean(noisy: NoisyClassifier, x: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """log mean_k softmax f(D(x + σz_k)), (B, *) → (B, C): g's probabilities, differentiable."""
    points = x.repeat(draws, *[1] * (x.ndim - 1))
    logs = noisy(points, noise_like(points, generator)).log_softmax(1).view(draws, len(x), -1)
    return logs.logsumexp(0) - math.log(draws)


@torch.no_grad()
def attack_smoothed(
    model: Model, x: Tensor, certificates: Certificates, radii: Sequence[float], *,
    denoiser: Any = None, steps: int = 20, gradient_draws: int = 16, draws: int = 1000,
    batch_size: int = 256, box: tuple[float | None, float | None] = (0.0, 1.0),
    progress: Progress | None = None,
) -> dict[float, Tensor]:  # fmt: skip
    """{radius: (n,) bool}: the examples that an ℓ2 attack on g at this radius does not break.

    x: the data given to :func:`certify`. PGD follows the mean probability over `gradient_draws`
    draws (Salman et al., 2019). An example is broken, at this radius and above, if at the attacked
    point a wrong class has the most of at most `draws` votes, significantly at the level alpha over
    all radii. Radius zero, the clean example, is always included. Examples certified at a radius
    are not attacked there.
    """
    settings = certificates.settings
    noisy, device = NoisyClassifier(model, settings["sigma"], denoiser), device_of(model, x)
    x, y = x[certificates.index].detach().to(device), certificates.y.to(device)
    if other := [k for k, found in _hashes(noisy, x).items() if settings[k] != found]:
        raise ValueError(f"the {' and the '.join(other)} should be those that were certified")
    generator = torch.Generator(device).manual_seed(combine_seeds(settings["seed"], 1))
    noisy.accelerate(x, y, settings["precision"])
    right = torch.ones(len(x), dtype=torch.bool)
    found: dict[float, Tensor] = {}
    each = [0.0, *sorted(radius for radius in radii if radius > 0)]
    level, at_once = settings["alpha"] / len(each), max(1, batch_size // gradient_draws)
    averaged = Wrapped(lambda x: _log_mean(noisy, x, gradient_draws, generator), noisy)
    for radius in each:
        pgd = PGD(Threat("l2", radius or 1.0, *box), steps, start="clean")
        todo = (right & ~certificates.certified(radius)).nonzero()[:, 0]
        for start in range(0, len(todo), at_once):
            part = todo[start : start + at_once]
            points, labels = x[part.to(device)], y[part.to(device)]
            with eval_mode(noisy, freeze=True):
                if radius:
                    points = pgd(averaged, points, labels, generator=generator)
                right[part] = ~_shown_wrong(noisy, points, labels, draws, level, generator)
            if progress:
                done = len(found) * len(x) + len(x) * (start + len(part)) // len(todo)
                progress(done, len(each) * len(x), f"attack at radius {radius:g}")
        found[radius] = right.clone()
    return found


def _hashes(noisy: NoisyClassifier, x: Tensor) -> dict[str, str | None]:
    """Hashes of data, model and denoiser. x: the examples, (n, *)."""
    return {
        "data": sha256_of_arrays([x.numpy(force=True)]), "weights": weights_hash(noisy.model),
        "denoiser": None if noisy.score is None else weights_hash(noisy.score),
    }  # fmt: skip


def _shown_wrong(
    noisy: NoisyClassifier, x: Tensor, y: Tensor, draws: int, level: float,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Whether a class other than y, (k,), has the most votes at x, (k, *): (k,) bool.

    It tests the two largest counts (Hung and Fithian, 2019), after an eighth of the draws and after
    all, each at half of the level.
    """
    from scipy.stats import binomtest  # slow to import

    noisy.calibrate(x)
    wrong, left = torch.zeros(len(x), dtype=torch.bool), list(range(len(x)))
    votes: dict[int, Any] = dict.fromkeys(left, 0)
    for more in (draws // 8, draws - draws // 8) if draws > 8 else (draws,):
        new = noisy.votes(x[left], more, [generator] * len(left), 1000)[0] if left else ()
        for i, counts in zip(list(left), new, strict=True):
            votes[i] = votes[i] + counts
            first, second = votes[i].topk(2)[0].tolist()
            if binomtest(first, first + second).pvalue <= level / 2:
                wrong[i] = int(votes[i].argmax()) != int(y[i])
                left.remove(i)
    return wrong
