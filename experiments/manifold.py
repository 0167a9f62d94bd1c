"""The paper's Figure 1, measured: sensitivity along a curve and across it, for each penalty.

    python experiments/manifold.py --out out/manifold   # a minute

Points lie near a sine arc in the plane, off it by noise of standard deviation σ. Their class
changes along the arc and never across it, and their density is a mixture of normals along the arc,
so the score is exact. A small SiLU network is trained without a penalty, with E‖∇m‖² (isotropic),
with TASER's variance of the residual Δm + s·∇m, and with its first-order form s·∇m, where m is the
margin. A seed fixes the data, the first weights and the batches, for all methods alike. A control
takes TASER's residual at the nearest point of the curve instead of at the data.

Strength is the weight λ of the isotropic penalty. The Stein penalties get λσ²: off the curve by n
the score is about −n/σ² across it, so E(s·∇m)² ≈ E‖Π_N ∇m‖²/σ², and at equal strength every penalty
charges the same for normal sensitivity. Methods are compared along their whole path over λ, at
equal tangential sensitivity, never at one λ each.

This is one curve in two dimensions with an exact score: it shows the mechanism, not that it carries
over to images. Training longer moves all of the numbers, so compare methods within one run only.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from curve import Curve, normal, split
from output import markdown, write
from taser import SteinPenalty
from taser.probes import Margin

PLAIN, ON_CURVE = "plain", "taser, on the curve"
TITLES = {
    PLAIN: "plain", "isotropic": "isotropic", "first-order": "TASER, first order",
    "taser": "TASER", ON_CURVE: "TASER, residual on the curve",
}  # fmt: skip
METHODS = ("isotropic", "first-order", "taser")
Penalty = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""(model, x, y, s) → a scalar to add to the loss, as :class:`taser.SteinPenalty` is called."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that the numbers depend on; eps: the radius of the perturbations."""

    seeds: tuple[int, ...] = (0, 1, 2)
    strengths: tuple[float, ...] = (0.0001, 0.001, 0.01, 0.1, 1.0)
    sigma: float = 0.05
    amplitude: float = 0.4
    segments: int = 4
    examples: int = 2000
    steps: int = 150
    batch: int = 256
    width: int = 48
    rate: float = 0.04
    eps: float = 0.1

    def weight(self, method: str, strength: float) -> float:
        """λ of a method at a strength."""
        return strength if method == "isotropic" else strength * self.sigma**2


QUICK = Settings(
    seeds=(0,), strengths=(0.0001, 0.01, 1.0), examples=600, steps=100, batch=128, width=32
)


@dataclass(frozen=True, eq=False)
class Sample:
    """Draws near the curve. x, s, foot, s_foot, tangent: (n, 2); y: (n,).

    foot: the curve point nearest to x; s, s_foot: the score at either; tangent: of the curve.
    """

    x: Tensor
    y: Tensor
    s: Tensor
    foot: Tensor
    s_foot: Tensor
    tangent: Tensor

    @classmethod
    def draw(cls, curve: Curve, settings: Settings, generator: torch.Generator) -> "Sample":
        """Points of the very density whose score is used, so the Stein identity holds exactly.

        The two classes take turns along the curve, each over an equal length of it.
        """
        density = curve.blurred(settings.sigma)
        x = density.sample(settings.examples, generator)
        nearest = curve.nearest(x)
        foot, y = curve.points[nearest], curve.segment(x, settings.segments) % 2
        return cls(x, y, density(x), foot, density(foot), curve.tangents[nearest])


# The networks and their penalties.


def margin_gradient(model: nn.Module, x: Tensor, y: Tensor, *, graph: bool = False) -> Tensor:
    """∇m at each x, (B, 2); with `graph`, differentiable in the parameters."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(Margin()(model(x), y).sum(), x, create_graph=graph)
    return gradient


def isotropic(model: nn.Module, x: Tensor, y: Tensor, _s: Tensor) -> Tensor:
    """E‖∇m‖², which treats every direction alike and needs no score."""
    return margin_gradient(model, x, y, graph=True).square().sum(1).mean()


def penalty_of(method: str) -> Penalty | None:
    """Each method's penalty: isotropic, Var(s·∇m) or Var(Δm + s·∇m).

    The exact backend costs two Hessian-vector products in the plane. A difference would need a
    step well below the thickness σ of the data, while its default goes by the data's spread.
    """
    if method == PLAIN:
        return None
    if method == "isotropic":
        return isotropic
    operator: Literal["first_order", "langevin"] = (
        "first_order" if method == "first-order" else "langevin"
    )
    return SteinPenalty(operator=operator, backend="exact")


def classifier(width: int, seed: int) -> nn.Module:
    """Two hidden layers of SiLU, so that every derivative exists, and two classes."""
    torch.manual_seed(seed)
    stem = nn.Linear(2, width)
    model = nn.Sequential(stem, nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))
    # From the usual start the network is close to linear and slow to bend: after a few hundred
    # steps a comparison would be of how fast the penalties train, not of what they train.
    with torch.no_grad():
        for parameter in stem.parameters():
            parameter.mul_(6.0)
    return model


def train(data: Sample, settings: Settings, method: str, strength: float, seed: int) -> nn.Module:
    """Minimise the cross-entropy plus λ times the method's penalty.

    Adam; the rate rises to `rate` and falls back to nothing.
    """
    penalty, weight = penalty_of(method), settings.weight(method, strength)
    at, s = (data.foot, data.s_foot) if method == ON_CURVE else (data.x, data.s)
    model = classifier(settings.width, seed)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.rate, total_steps=settings.steps
    )
    draws = torch.Generator().manual_seed(seed)
    for _ in range(settings.steps):
        rows = torch.randint(len(data.x), (settings.batch,), generator=draws)
        loss = cross_entropy(model(data.x[rows]), data.y[rows])
        if penalty is not None:
            loss = loss + weight * penalty(model, at[rows], data.y[rows], s[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    if not bool(torch.isfinite(loss)):
        raise RuntimeError(
            f"training with seed {seed} and penalty weight {weight:g} diverged, to a loss of "
            f"{float(loss.detach())}: a lower rate than {settings.rate:g}, or weaker strengths, "
            "should help"
        )
    return model.eval()


# What is measured.


@dataclass(frozen=True)
class Sensitivity:
    """Held-out measurements of one classifier.

    tangent, normal: root mean squares of ‖Π_T ∇m‖ and ‖Π_N ∇m‖; accuracy: of clean points;
    accuracy_normal, accuracy_any: of the worst point within ε of each, on the line across the
    curve, and anywhere in the disc.
    """

    tangent: float
    normal: float
    accuracy: float
    accuracy_normal: float = math.nan
    accuracy_any: float = math.nan

    @property
    def ratio(self) -> float:
        """Normal over tangential sensitivity; no rescaling of the network changes it."""
        return self.normal / self.tangent


def measure(model: nn.Module, x: Tensor, y: Tensor, tangent: Tensor, *, eps: float) -> Sensitivity:
    """x: (B, 2); y: (B,); tangent: (B, 2), of the curve at the point nearest to x."""

    @torch.no_grad()
    def correct(shifts: Sequence[Tensor]) -> Tensor:
        """Whether a point is classified correctly after every shift: (B,)."""
        return torch.stack([model(x + shift).argmax(1) == y for shift in shifts]).all(0)

    lengths = [sign * eps * k / 6 for k in range(1, 7) for sign in (-1, 1)]
    # Rings up to ε: in the plane a search of all angles needs no attack.
    turns = [2 * math.pi * k / 32 for k in range(32)]
    disc = [
        eps * ring / 2 * x.new_tensor([math.cos(turn), math.sin(turn)])
        for ring in (1, 2)
        for turn in turns
    ]
    clean = correct([torch.zeros_like(x)])
    on_line = clean & correct([length * normal(tangent) for length in lengths])
    shares = [float(flags.float().mean()) for flags in (clean, on_line, on_line & correct(disc))]
    along, across = split(margin_gradient(model, x, y), tangent)
    rms = [float(part.square().sum(1).mean().sqrt()) for part in (along, across)]
    return Sensitivity(*rms, *shares)


# Comparing methods along their paths.

Along = Sequence[Sensitivity]
"""What one penalty and one seed give over growing λ."""
Part = Literal["tangent", "normal"]


def common_levels(paths: Sequence[Along], part: Part, count: int = 3) -> list[float]:
    """`count` levels of `part` that every path passes, evenly spread on a log scale.

    They lie inside the range that all paths share, apart from its ends; none if there is none.
    """
    low = max(min(getattr(point, part) for point in path) for path in paths)
    high = min(max(getattr(point, part) for point in path) for path in paths)
    if not 0 < low < high:
        return []
    return [low * (high / low) ** (k / (count + 1)) for k in range(1, count + 1)]


def at_level(path: Along, part: Part, level: float) -> Sensitivity:
    """The path where `part` is `level`, by straight lines between neighbours on log scales.

    A path that passes the level more than once is read at the largest λ that does.
    """
    for weak, strong in reversed(list(pairwise(path))):
        start, end = getattr(weak, part), getattr(strong, part)
        if min(start, end) <= level <= max(start, end) and start != end:
            share = math.log(level / start) / math.log(end / start)
            return Sensitivity(
                tangent=weak.tangent * (strong.tangent / weak.tangent) ** share,
                normal=weak.normal * (strong.normal / weak.normal) ** share,
                accuracy=weak.accuracy + (strong.accuracy - weak.accuracy) * share,
            )
    reached = [getattr(point, part) for point in path]
    raise ValueError(
        f"the level of {part} should lie within what the path reaches, {min(reached):.3g} to "
        f"{max(reached):.3g}; got {level:.3g}"
    )


@dataclass(frozen=True)
class Study:
    """measured: (method, strength) → what was measured, one entry a seed.

    ceiling: the share of held-out points further than ε, along the curve, from another class: what
    boundaries square to the curve would score against perturbations in any direction.
    """

    settings: Settings
    measured: dict[tuple[str, float], list[Sensitivity]]
    ceiling: float

    def paths(self, method: str) -> list[list[Sensitivity]]:
        """A method over growing strength, for each seed."""
        over = [self.measured[method, strength] for strength in self.settings.strengths]
        return [list(path) for path in zip(*over, strict=True)]

    def levels(self, part: Part, other: str = "isotropic") -> list[float]:
        """Levels of a sensitivity that TASER and another method pass with every seed."""
        return common_levels([*self.paths("taser"), *self.paths(other)], part)

    def matched(self, method: str, part: Part, level: float) -> list[Sensitivity]:
        """A method at one of the `levels`, one entry a seed."""
        return [at_level(path, part, level) for path in self.paths(method)]

    def factors(self, equal: Part, other: str, part: Part) -> list[float]:
        """`part` under another method over TASER's, where the two have equal sensitivity `equal`.

        One number for each common level and seed; none if there is no level.
        """
        return [
            getattr(theirs, part) / getattr(ours, part)
            for level in self.levels(equal, other)
            for ours, theirs in zip(
                self.matched("taser", equal, level), self.matched(other, equal, level), strict=True
            )
        ]

    def shown(self, method: str) -> float:
        """The strength whose tangential sensitivity is nearest to the middle one of `levels`.

        So the pictures differ in what is across the curve; without levels the middle strength.
        """
        strengths, levels = self.settings.strengths, self.levels("tangent")
        if method == PLAIN:
            return 0.0
        if not levels:
            return strengths[len(strengths) // 2]
        middle = levels[len(levels) // 2]

        def distance(strength: float) -> float:
            tangent = fmean(m.tangent for m in self.measured[method, strength])
            return abs(math.log(tangent / middle))

        return min(strengths, key=distance)

    def figures(self) -> dict[str, Any]:
        """Every number, for JSON."""
        runs = [
            {"method": method, "strength": strength, "seed": seed, **asdict(m), "ratio": m.ratio}
            for (method, strength), found in self.measured.items()
            for seed, m in zip(self.settings.seeds, found, strict=True)
        ]
        return {"settings": asdict(self.settings), "ceiling": self.ceiling, "runs": runs}


def run(settings: Settings) -> tuple[Study, Sample, dict[str, nn.Module]]:
    """Train and measure every method; also the first seed's data and networks, for the maps."""
    curve = Curve.sine(settings.amplitude)
    plan = [(PLAIN, 0.0), *product(METHODS, settings.strengths)]
    samples: dict[int, list[Sample]] = {}
    models: dict[tuple[str, float, int], nn.Module] = {}
    measured: dict[tuple[str, float], list[Sensitivity]] = {}

    def one(method: str, strength: float, seed: int) -> None:
        data, held_out = samples[seed]
        model = train(data, settings, method, strength, seed)
        models[method, strength, seed] = model
        found = measure(model, held_out.x, held_out.y, held_out.tangent, eps=settings.eps)
        measured.setdefault((method, strength), []).append(found)

    for seed in settings.seeds:
        generator = torch.Generator().manual_seed(seed)
        samples[seed] = [Sample.draw(curve, settings, generator) for _ in range(2)]
        for method, strength in plan:
            one(method, strength, seed)
    rooms = torch.cat(
        [curve.room(held_out.x, settings.segments) for _, held_out in samples.values()]
    )
    study = Study(settings, measured, float((rooms > settings.eps).float().mean()))
    for seed in settings.seeds:
        one(ON_CURVE, study.shown("taser"), seed)
    first = settings.seeds[0]
    shown = {method: models[method, study.shown(method), first] for method in (PLAIN, *METHODS)}
    return study, samples[first][0], shown


# The tables.


def runs_table(study: Study) -> str:
    """One row a method and strength: mean ± standard deviation over seeds."""
    rows = []
    for (method, strength), found in study.measured.items():
        weight = study.settings.weight(method, strength)
        rows.append([
            TITLES[method], *([f"{strength:g}", f"{weight:.2g}"] if strength else ["–", "–"]),
            spread([m.tangent for m in found], 2), spread([m.normal for m in found], 2),
            spread([m.ratio for m in found], 3), spread([100 * m.accuracy for m in found], 1),
            spread([100 * m.accuracy_normal for m in found], 1),
            spread([100 * m.accuracy_any for m in found], 1),
        ])  # fmt: skip
    return markdown(
        ["method", "strength", "λ", "tangential", "normal", "normal / tangential",
         "clean %", "pushed across %", "pushed anywhere %"], rows,
        f"Held-out points. Tangential and normal: rms of ‖Π_T ∇m‖ and ‖Π_N ∇m‖. Pushed: by up to "
        f"{study.settings.eps:g}, the worst of a fine search; boundaries square to the curve would "
        f"keep about {100 * study.ceiling:.1f} % of points pushed anywhere. Mean ± standard "
        f"deviation over {len(study.settings.seeds)} seed(s).",
    )  # fmt: skip


def matched_table(study: Study) -> str:
    """Sensitivity across the curve where both penalties have the same along it."""
    rows = []
    for level, method in product(study.levels("tangent"), ("isotropic", "taser")):
        points = study.matched(method, "tangent", level)
        normals, ratios = (
            spread([p.normal for p in points], 2),
            spread([p.ratio for p in points], 3),
        )
        clean = spread([100 * p.accuracy for p in points], 1)
        rows.append([f"{level:.2f}", TITLES[method], normals, ratios, clean])
    return markdown(
        ["tangential", "method", "normal", "normal / tangential", "clean %"], rows,
        "Read off each seed's path over strengths, by straight lines between neighbours on log "
        "scales." + ("" if rows else " They have no tangential sensitivity in common."),
    )  # fmt: skip


def factors_table(study: Study) -> str:
    """One sensitivity of another method over TASER's, where the other sensitivity is equal."""
    rows = []
    compared: list[tuple[str, Part, Part]] = [
        ("isotropic", "tangent", "normal"), ("isotropic", "normal", "tangent"),
        ("first-order", "tangent", "normal"),
    ]  # fmt: skip
    for other, equal, part in compared:
        found = study.factors(equal, other, part)
        cells = ["–", "–"]
        if found:
            cells = [f"{geometric_mean(found):.2g}", f"{min(found):.2g}–{max(found):.2g}"]
        rows.append([TITLES[other], equal, part, *cells])
    return markdown(
        ["method", "equal sensitivity", "compared", "over TASER's", "range"], rows,
        "Geometric mean and range over common levels and seeds; – if there is no common level.",
    )  # fmt: skip


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation."""
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {stdev(values):.{digits}f}"


# The picture.

# Okabe and Ito's colours, distinct for the colour-blind; the markers repeat them.
STYLES = {"isotropic": ("#d55e00", "s"), "first-order": ("#56b4e9", "^"), "taser": ("#0072b2", "o")}


def draw(study: Study, data: Sample, models: dict[str, nn.Module]) -> Figure:
    """Two rows of maps, normal over tangential, a column a method; three panels of curves below.

    Maps are of the first seed, dark where the margin reacts strongly; the green line is the
    decision boundary. Lines are means and bands the range over seeds, in the middle panel a line is
    a seed; dotted lines and stars are plain training.
    """
    figure = Figure(figsize=(11, 6.7), layout="constrained")
    parts = np.asarray(figure.subfigures(2, 1, height_ratios=(1, 1.15)))
    draw_maps(parts[0], study, data, models)
    left, middle, right = parts[1].subplots(1, 3)
    draw_ratios(left, middle, study)
    draw_accuracy(right, study)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=TITLES[method])
        for method, (colour, marker) in STYLES.items()
    ]
    handles.append(Line2D([], [], color="black", linestyle=":", marker="*", label=TITLES[PLAIN]))
    parts[1].legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_maps(figure: SubFigure, study: Study, data: Sample, models: dict[str, nn.Module]) -> None:
    """Each classifier's two gradient parts, over its own rms gradient: shape, not scale."""
    curve = Curve.sine(study.settings.amplitude)
    low, high = curve.points.amin(0) - 0.2, curve.points.amax(0) + 0.2
    across, up = (torch.arange(float(a), float(b), 0.01) for a, b in zip(low, high, strict=True))
    shape = (len(up), len(across))
    vertical, horizontal = torch.meshgrid(up, across, indexing="ij")
    grid = torch.stack([horizontal, vertical], -1).view(-1, 2)
    nearest = curve.nearest(grid)
    far = (grid - curve.points[nearest]).norm(dim=1).view(shape) > 3 * study.settings.sigma
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for column, method in zip(panels.T, (PLAIN, "isotropic", "taser"), strict=True):
        model, strength = models[method], study.shown(method)
        # With two classes m = ±(z_1 − z_0), so one label will do: the sizes are the other's too.
        gradient = margin_gradient(model, grid, torch.zeros(len(grid), dtype=torch.long))
        along, off = split(gradient, curve.tangents[nearest])
        with torch.no_grad():
            z = model(grid)
        margin = (z[:, 1] - z[:, 0]).view(shape)
        measured = study.measured[method, strength][0]
        whole = math.hypot(measured.tangent, measured.normal)
        for axes, part, rms in zip(
            column, (off, along), (measured.normal, measured.tangent), strict=True
        ):
            share = np.ma.masked_where(far.numpy(), (part.norm(dim=1).view(shape) / whole).numpy())
            colours: ScalarMappable = axes.imshow(
                share, origin="lower", norm=LogNorm(0.03, 3), cmap="magma_r",
                extent=tuple(map(float, (across[0], across[-1], up[0], up[-1]))),
            )  # fmt: skip
            axes.contour(across, up, margin, [0.0], colors="#00a884", linewidths=2)
            for y, colour in enumerate(("white", "black")):
                x = data.x[:250][data.y[:250] == y]
                axes.scatter(*x.T, s=5, c=colour, edgecolors="black", linewidths=0.3)
            text = f"rms {rms:.3g}"
            axes.text(0.36, 0.95, text, transform=axes.transAxes, ha="center", va="top")
            axes.set(aspect="equal", xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        column[0].set_title(TITLES[method] + (f", strength {strength:g}" if strength else ""))
    for axes, label in zip(panels[:, 0], ("across the curve", "along the curve"), strict=True):
        axes.set_ylabel(label)
    figure.colorbar(colours, ax=panels, label="share of rms ‖∇m‖", pad=0.01, extend="both")


def draw_ratios(left: Axes, right: Axes, study: Study) -> None:
    """Normal over tangential sensitivity, over strength and over tangential sensitivity."""
    plain, strengths = study.measured[PLAIN, 0.0], study.settings.strengths
    for method, (colour, marker) in STYLES.items():
        band(
            left,
            strengths,
            [[m.ratio for m in study.measured[method, s]] for s in strengths],
            method,
        )
        for path in study.paths(method):
            x, y = [point.tangent for point in path], [point.ratio for point in path]
            right.plot(x, y, color=colour, marker=marker, ms=4, lw=1, alpha=0.7)
    left.axhline(fmean(m.ratio for m in plain), color="black", ls=":")
    right.plot([m.tangent for m in plain], [m.ratio for m in plain], "*", color="black", ms=9)
    left.set(xlabel="strength of the penalty", title="at equal strength")
    right.set(xlabel="tangential sensitivity", title="at equal tangential sensitivity")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylabel="normal / tangential sensitivity")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def draw_accuracy(axes: Axes, study: Study) -> None:
    """Accuracy over strength: pushed across the curve, and clean (dashed)."""
    strengths = study.settings.strengths
    for method in METHODS:
        found = [study.measured[method, s] for s in strengths]
        band(axes, strengths, [[100 * m.accuracy_normal for m in ms] for ms in found], method)
        clean = [fmean(100 * m.accuracy for m in ms) for ms in found]
        axes.plot(strengths, clean, color=STYLES[method][0], ls="--", lw=1)
    plain = fmean(100 * m.accuracy_normal for m in study.measured[PLAIN, 0.0])
    axes.axhline(plain, color="black", ls=":")
    axes.set(xscale="log", xlabel="strength of the penalty", ylabel="accuracy, %")
    axes.set_title(f"pushed {study.settings.eps:g} across (dashed: clean)")


def band(axes: Axes, x: Sequence[float], ys: list[list[float]], method: str) -> None:
    """The mean over seeds, and the range from the least to the most."""
    colour, marker = STYLES[method]
    axes.fill_between(x, [min(y) for y in ys], [max(y) for y in ys], color=colour, alpha=0.2, lw=0)
    axes.plot(x, [fmean(y) for y in ys], color=colour, marker=marker, markersize=5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/manifold"))
    parser.add_argument("--seeds", type=int, default=3, help="networks for every setting")
    parser.add_argument("--quick", action="store_true", help="seconds; too short to quote")
    given = parser.parse_args(arguments)
    study, data, models = run(QUICK if given.quick else Settings(seeds=tuple(range(given.seeds))))
    picture = draw(study, data, models)
    tables = [runs_table(study), matched_table(study), factors_table(study)]
    write(given.out, tables, study.figures(), "geometry.png", picture)


if __name__ == "__main__":
    main()
