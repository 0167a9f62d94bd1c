"""The points that an attack may reach: a ball around each input, bounds, and valid values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from taser._names import unknown
from taser._runtime import noise_like, rows_like
from taser.data import Dataset

Norm = Literal["linf", "l2", "l1"]
Rng = torch.Generator | None
SPARSE = 0.01  # the share of coordinates in one ℓ1 step
HALVINGS = 40  # bisection steps of the projection onto the ℓ1 ball
BOUNDS = "the bounds of its features"
OUTSIDE = 1e-6  # of a column's bounds: what rounding does
NAMED = 12  # columns in a threat's text
ON_GRID = 1e-4  # tolerance for values on the grid, in steps
NO_PART = {"low": -math.inf, "high": math.inf, "scale": 1.0, "grid": 0.0}


@dataclass(frozen=True)
class Threat:
    """{x' : ‖(x' − x)/scale‖ ≤ ε} in ℓ∞, ℓ2 or ℓ1, inside [low, high] (None: unbounded).

    >>> Threat("linf", "8/255").epsilon
    0.03137254901960784
    >>> Threat("l1", 2.0, low=None, high=None, scale=[1.0, 0.5, 0.0])  # the third cannot change
    Threat(norm='l1', epsilon=2.0, low=None, high=None, scale=(1.0, 0.5, 0.0))

    low, high, scale and grid are each a number, or a tensor or nested list in the shape of one
    input. scale: ε·scale is the ε of each feature; 0 is a feature that cannot change. low, high:
    None is no bound. grid: the step of features that change by whole steps (1 for integers), 0 for
    others.
    one_hot: for vectors with a scale, groups of columns of which one is 1 and the others 0.
    Changing the category does not count towards ε; scale 0 fixes it. An attack may search between
    valid values; what it returns is valid. With the names of columns: :meth:`for_table`, which
    sets columns, the changes allowed in words.
    """

    norm: Norm = "linf"
    epsilon: float = 8 / 255
    low: Any = 0.0
    high: Any = 1.0
    scale: Any = None
    grid: Any = None
    one_hot: Any = ()
    columns: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm should be one of {get_args(Norm)}; got {self.norm!r}")
        object.__setattr__(self, "epsilon", fraction(self.epsilon))
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon should be positive and finite; got {self.epsilon}")
        for name in NO_PART:
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        object.__setattr__(self, "one_hot", tuple(tuple(map(int, g)) for g in self.one_hot))
        low, high = self.low, self.high
        if not (isinstance(low, tuple) or isinstance(high, tuple)):
            is_range = low is not None and high is not None and -math.inf < low < high < math.inf
            if not (is_range or (low is None and high is None)):
                wanted = "low and high should be finite with low < high, or both None"
                raise ValueError(f"{wanted}; got {low} and {high}")
        if (self.norm, low, high, self.scale) == ("linf", 0.0, 1.0, None) and self.epsilon > 1.0:
            wide = f"{self.epsilon:g}"
            raise ValueError(f"epsilon={wide} is wider than [0, 1]; did you mean {wide}/255?")
        self._check_parts()

    def _check_parts(self) -> None:
        given = {name: self._given(name) for name in NO_PART}
        shapes = {name: tuple(part.shape) for name, part in given.items() if part.ndim}
        columns = [column for group in self.one_hot for column in group]
        shape = shapes.get("scale", ())
        if len(set(shapes.values())) > 1:
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(f"a threat's parts should have the shape of one input; got {listed}")
        for part in (given["scale"], given["grid"]):
            if not bool(((part >= 0) & part.isfinite()).all()):
                raise ValueError("scale and grid should be finite numbers, zero or more")
        if bool((given["low"] > given["high"]).any()) or not bool(given["scale"].any()):
            raise ValueError("low should be at most high, and scale positive for some feature")
        inside = len(shape) == 1 and all(0 <= column < shape[0] for column in columns)
        if columns and not (inside and len(set(columns)) == len(columns)):
            wanted = f"different columns of a scale for each column, {shape}"
            raise ValueError(f"one_hot groups should hold {wanted}; got {columns}")
        for group in self.one_hot:
            if len(group) < 2 or len({s > 0 for s in given["scale"][[*group]].tolist()}) > 1:
                wanted = "two or more columns, fixed together or not at all"
                raise ValueError(f"a one-hot group has {wanted}; got {[*group]}")

    def _given(self, name: str) -> Tensor:
        given = np.array(getattr(self, name), dtype=np.float64)  # None becomes NaN
        return torch.from_numpy(np.where(np.isnan(given), NO_PART[name], given))

    @cached_property
    def _free(self) -> list[list[int]]:
        """The one-hot groups that may change."""
        scale = self._given("scale")
        return [[*group] for group in self.one_hot if scale[group[0]] > 0]

    @cached_property
    def _parts(self) -> dict[str, Tensor]:
        """Numbers, or in the shape of one input; scale is zero for one-hot columns."""
        parts = {name: self._given(name) for name in NO_PART}
        parts["unit"] = parts["scale"].clone()
        for group in self._free:
            parts["scale"][group], parts["unit"][group] = 0.0, 1 / self.epsilon
        return parts

    def _like(self, name: str, x: Tensor) -> Tensor:
        """A part as inputs, x, (B, *)."""
        part = self._parts[name].to(x)
        if part.ndim and part.shape != x.shape[1:]:
            shapes = f"{tuple(part.shape)}; got {tuple(x.shape[1:])}"
            raise ValueError(f"the threat expects inputs of shape {shapes}")
        return part

    def feature_unit(self, x: Tensor) -> Tensor:
        """How far each feature moves in a step of length one, (*) or a number; one-hot: 1/ε."""
        return self._like("unit", x)

    def in_units(self, change: Tensor) -> Tensor:
        """A change in units of the norm; zero where it does not count. (B, *) → (B, *)."""
        scale = self._like("scale", change)
        return change * torch.where(scale > 0, 1 / scale, 0.0)

    has_structure = property(
        lambda self: any(part not in (None, ()) for part in (self.scale, self.grid, self.one_hot))
        or self.bounds_text == BOUNDS
    )  # fmt: skip
    bounds_text = property(
        lambda self: BOUNDS if isinstance(self.low, tuple) or isinstance(self.high, tuple)
        else f"[{self.low}, {self.high}]".replace(".0", "")
    )  # fmt: skip
    has_fixed = property(lambda self: bool((self._parts["unit"] == 0).any()))

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest allowed point (for ℓ2: into the ball, then into the box). (B, *) → (B, *)."""
        return self.valid(self.relax(x_adv, x), x)

    def relax(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Like :meth:`project`, without rounding to valid values. (B, *) → (B, *)."""
        change, scale = x_adv - x, self._like("scale", x)
        if self.norm == "linf":
            change = change.clamp(-self.epsilon * scale, self.epsilon * scale)
        elif self.norm == "l2":
            u = self.in_units(change)
            change = scale * u * (self.epsilon / lengths(u).clamp_min(1e-12)).clamp_max(1.0)
        else:
            change = scale * self._into_l1(self.in_units(change), x)
        moved = self.into_box(x + change)
        for group in self._free:
            moved[:, group] = x_adv[:, group].clamp(0, 1)
        return moved

    def _into_l1(self, u: Tensor, x: Tensor) -> Tensor:
        """The nearest point of the ℓ1 ball and the box: sign(u)·min((|u| − λ)₊, room)."""
        up, down = self._like("high", x) - x, self._like("low", x) - x
        room = self.in_units(torch.where(u > 0, up, -down).clamp_min(0)).nan_to_num(0.0)

        def shrunk(shift: Tensor) -> Tensor:
            return torch.minimum((u.abs() - rows_like(shift, u)).clamp_min(0), room)

        below = torch.zeros_like(u.flatten(1)[:, 0])
        above = torch.where(self._size(shrunk(below)) > self.epsilon, u.abs().flatten(1).amax(1), 0)
        for _ in range(HALVINGS):
            middle = (below + above) / 2
            outside = self._size(shrunk(middle)) > self.epsilon
            below, above = torch.where(outside, middle, below), torch.where(outside, above, middle)
        return u.sign() * shrunk(above)

    def valid(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Rounded to whole steps from x and one column a group: (B, *). In the ball if x_adv is."""
        if self.grid is not None:
            grid = self._like("grid", x)
            step = grid.where(grid > 0, 1.0)
            count = (x_adv - x) / step
            nearest = torch.where(grid > 0, x + count.round() * step, x_adv)
            # Where rounding leaves the ball or the box, round towards x instead.
            inwards = x + (count + ON_GRID * count.sign()).trunc() * step
            fits = self.distance(nearest, x) <= self.epsilon * (1 + ON_GRID)
            fits &= (nearest == self.into_box(nearest)).flatten(1).all(1)
            inwards = torch.where(grid > 0, inwards, x_adv)
            x_adv = torch.where(rows_like(fits, x), nearest, inwards)
        for group in self._free:
            best = x_adv[:, group].argmax(1, keepdim=True)
            x_adv = x_adv.clone()
            x_adv[:, group] = torch.zeros_like(x_adv[:, group]).scatter(1, best, 1.0)
        return x_adv

    def into_box(self, x: Tensor) -> Tensor:
        """x with every coordinate in [low, high]."""
        return x.clamp(self._like("low", x), self._like("high", x))

    def reach(self, x: Tensor) -> float:
        """The diameter of the box; without bounds, of the box around all balls."""
        low, high, ball = (self._like(name, x) for name in ("low", "high", "scale"))
        low = torch.where(low.isfinite(), low, x.amin(0) - self.epsilon * ball)
        high = torch.where(high.isfinite(), high, x.amax(0) + self.epsilon * ball)
        return float(self._size(self.in_units((high - low).expand(1, *x.shape[1:]))))

    def ascent(self, gradient: Tensor, at: Tensor | None = None) -> Tensor:
        """The step of unit length that raises a linear function most: sign(g), or g/‖g‖₂.

        In ℓ1 it is spread evenly over the hundredth of the coordinates with the largest gradients
        (Tramèr & Boneh, 2019); at: its starting point, (B, *): no coordinate then leaves the box.
        """
        if self.norm == "linf":
            step = gradient.sign() * self.feature_unit(gradient)
        else:
            rise = gradient * self._like("scale", gradient)
            if self.norm == "l1":
                if at is not None:
                    rise = rise.where(self.into_box(at + rise.sign()) != at, 0.0)
                flat = rise.flatten(1)
                largest = flat.abs().topk(self._sparse(flat.shape[1]), 1).indices
                signs = flat.gather(1, largest).sign() / largest.shape[1]
                rise = torch.zeros_like(flat).scatter(1, largest, signs).view_as(rise)
            else:
                rise = rise / lengths(rise).clamp_min(1e-12)
            step = rise * self.feature_unit(gradient)
        for group in self._free:  # the best column rises fastest
            part = gradient[:, group]
            step[:, group] = part / part.abs().amax(1, keepdim=True).clamp_min(1e-12) / self.epsilon
        return step

    @staticmethod
    def _sparse(coordinates: int) -> int:
        return max(1, int(SPARSE * coordinates))

    def along(self, direction: Tensor) -> Tensor:
        """The change of unit length along a direction, which is in units of the norm: (B, *)."""
        size = self._size(direction * (self._like("scale", direction) > 0))
        step = direction / rows_like(size, direction).clamp_min(1e-12)
        return step * self.feature_unit(direction)

    def random(self, x: Tensor, generator: Rng = None) -> Tensor:
        """A point drawn evenly from the ball around each x, put into the box. (B, *) → (B, *)."""
        like: dict[str, Any] = {"dtype": x.dtype, "device": x.device, "generator": generator}
        scale = self._like("scale", x)
        if self.norm == "linf":
            change = self.epsilon * (2 * torch.rand(x.shape, **like) - 1) * scale
        else:
            way = noise_like(x, generator)
            radius = torch.rand(len(x), **like)
            if self.norm == "l1":  # signed exponentials, divided by their sum
                way = way.sign() * torch.rand(x.shape, **like).clamp_min(1e-30).log()
            way = way * (scale > 0)
            dimension = max(1, int((scale > 0).expand(x.shape[1:]).sum()))
            radius = rows_like(radius.pow(1 / dimension), x)
            change = self.epsilon * radius * way / rows_like(self._size(way), x).clamp_min(1e-12)
            change = change * scale
        moved = self.into_box(x + change)
        for group in self._free:
            moved[:, group] = torch.rand(len(x), len(group), **like)
        return self.valid(moved, x)

    def rms_epsilon(self, shape: Sequence[int]) -> float:
        """The root mean square, over coordinates, of a change of length ε to inputs of this shape.

        >>> Threat("linf", 0.1).rms_epsilon((3, 2, 2)), Threat("l2", 2.0).rms_epsilon((4,))
        (0.1, 1.0)
        """
        size = math.prod(shape)
        divisor = {"linf": 1, "l2": size, "l1": size * self._sparse(size)}[self.norm] ** 0.5
        return self.epsilon * float(self._parts["unit"].square().mean().sqrt()) / divisor

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """‖(x_adv − x)/scale‖ of each example, (B,); infinite if a feature changed that cannot."""
        change = x_adv - x
        moved = (change != 0) & (self._like("unit", x) == 0)
        return self._size(self.in_units(change)).masked_fill(moved.flatten(1).any(1), torch.inf)

    def _size(self, u: Tensor) -> Tensor:
        """The norm of each example: (B, *) → (B,)."""
        p = {"linf": torch.inf, "l2": 2.0, "l1": 1.0}[self.norm]
        return u.flatten(1).norm(p=p, dim=1)

    def check_inputs(self, x: Tensor) -> None:
        """Raise for inputs (N, *) of the wrong shape, or a one-hot group that is not one-hot."""
        for name in self._parts:
            self._like(name, x)
        for group in self.one_hot:
            part = x[:, list(group)]
            right = ((part == 0) | (part == 1)).all(1) & (part.sum(1) == 1)
            if not bool(right.all()):
                got = f"an example has {[round(v, 3) for v in part[~right][0].tolist()]}"
                raise ValueError(f"a one-hot group is one 1 and else 0; in {[*group]} {got}")

    def numbers(self) -> dict[str, Any]:
        """The parts that are given, for JSON; `Threat(**numbers)` is an equal threat."""
        given = {"norm", "epsilon", "low", "high"}
        return {k: v for k, v in asdict(self).items() if k in given or v not in (None, (), "")}

    def __repr__(self) -> str:
        parts = {name: part for name, part in self.numbers().items() if name != "columns"}
        return f"Threat({', '.join(f'{name}={part!r}' for name, part in parts.items())})"

    def __str__(self) -> str:
        name = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1"}[self.norm]
        groups = f", {len(self._free)} free categories" * bool(self._free)
        still = int((self._parts["unit"] == 0).sum())  # of a fixed category, all its features
        still -= sum(len(g) - 1 for g in self.one_hot if self._parts["unit"][g[0]] == 0)
        fixed = f", {still} fixed" * self.has_fixed
        times = " × scale" * (len({*self._parts["scale"].flatten().tolist()} - {0.0}) > 1)
        return f"{name} ε={shown(self.epsilon)}{times}{fixed}{groups}"

    @classmethod
    def for_table(
        cls, dataset: Dataset, epsilon: float | str | Mapping[str, Any] = 0.5, *,
        norm: Norm = "linf", fixed: Sequence[str] = (), integer: Sequence[str] = (),
        one_hot: Sequence[Sequence[str]] = (), bounds: Mapping[str, Any] | None = None,
    ) -> "Threat":  # fmt: skip
        """A threat for a table, by column names; its categories become one-hot groups.

        epsilon: a number, in standard deviations of each column (the units of the model's inputs),
        with all categories free; or by name in the column's own units, "any" for a categorical
        column, and the columns without a name fixed; ε is then 1, in multiples of these values.
        fixed: columns that cannot change; integer: those that change by whole units;
        bounds: by name, (low, high) in the column's units, None for no bound; one_hot: groups of
        0/1 columns beside the categorical columns of the data set.
        """
        if (columns := dataset.columns) is None:
            raise ValueError(f"{dataset.name} has no names of columns: give Threat(…, scale=…)")
        groups = {**dataset.categories, **{group[0]: tuple(group) for group in one_hot}}
        inside = {column for group in groups.values() for column in group}
        members = {**{c: (c,) for c in columns if c not in inside}, **groups}
        own = epsilon if isinstance(epsilon, Mapping) else None
        for name in {*fixed, *integer, *(own or ()), *(bounds or ()), *inside} - {*columns}:
            if name not in members:
                raise unknown(f"column of {dataset.name}", name, members)
        for name in (*integer, *(bounds or ()), *(own or ())):
            if name not in members or (name in groups and (own or {}).get(name) != "any"):
                what = "is categorical, so it has no ε, whole steps or bounds"
                raise ValueError(f"column {name!r} {what}: it is fixed, or {name}=any")
        mean, std = (
            torch.full((len(columns),), value, dtype=torch.float64) for value in (0.0, 1.0)
        )
        if (scaling := dataset.standardisation) is not None:
            mean, std = torch.tensor([scaling.mean, scaling.std], dtype=torch.float64)
        changes, still = [], []  # of each column, in words
        scale, grid = torch.ones_like(std), torch.zeros_like(std)
        low, high = torch.full_like(std, -math.inf), torch.full_like(std, math.inf)
        for name, group in members.items():
            at = [columns.index(column) for column in group]
            if name in fixed or (own is not None and name not in own) or {*group} & {*fixed}:
                scale[at] = 0.0
                still.append(name)
            elif name in groups:
                changes.append(f"{name} any")
            else:
                if own is not None:
                    if own[name] == "any":
                        what = "is numeric, so its ε is a number; 'any' is for columns of text"
                        raise ValueError(f"column {name!r} {what}")
                    scale[at] = fraction(own[name]) / std[at]
                unit = 1.0 if own is not None else fraction(epsilon)  # type: ignore[arg-type]
                changes.append(f"{name} ±{unit * float(scale[at] * std[at]):.4g}")
            if name in integer:
                values = dataset.train.x[:, at].double() * std[at] + mean[at]
                if bool(((values - values.round()).abs() > 1e-3).any()):
                    raise ValueError(f"column {name!r} of {dataset.name} is not of whole numbers")
                grid[at] = 1 / std[at]
            ends = (bounds or {}).get(name, ())
            for end, place in zip(ends, (low, high), strict=False):
                if end is not None:
                    place[at] = (fraction(end) - mean[at]) / std[at]
            if ends:
                x = torch.cat([split.x[:, at].double().cpu() for split in dataset.splits.values()])
                slack = OUTSIDE * x.abs().clamp_min(1.0)
                if bool(((x < low[at] - slack) | (x > high[at] + slack)).any()):
                    least, most = (float(v) for v in torch.aminmax(x * std[at] + mean[at]))
                    given = " to ".join("no bound" if e is None else f"{e}" for e in ends)
                    got = f"has values from {least:.6g} to {most:.6g}"
                    wanted = f"outside its bounds, {given}: widen them or drop those rows"
                    raise ValueError(f"column {name!r} of {dataset.name} {got}, {wanted}")
        threat = cls(
            norm, 1.0 if own is not None else epsilon,  # type: ignore[arg-type]
            low if bounds else None, high if bounds else None, grid=grid if integer else None,
            scale=scale if groups or bool((scale != 1).any()) else None,
            one_hot=[[columns.index(column) for column in g] for g in groups.values()],
            columns=f"{_listed(changes)}; fixed: {_listed(still) or 'none'}",
        )  # fmt: skip
        threat.check_inputs(dataset.train.x)
        return threat


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMED], *[f"{len(names) - NAMED} more"] * (len(names) > NAMED)])


def _frozen(given: Any) -> Any:
    """Numbers in nested tuples, which can be compared; None for what is not finite."""
    if given is None or isinstance(given, int | float | str):
        return given if given is None else fraction(given)
    try:
        numbers = np.asarray(given, dtype=np.float64).tolist()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a threat's parts should be numbers, one for each feature: {error}"
        ) from None

    def nested(part: Any) -> Any:
        if isinstance(part, list):
            return tuple(map(nested, part))
        return part if math.isfinite(part) else None

    return nested(numbers)


def lengths(change: Tensor) -> Tensor:
    """The ℓ2 norm of each example, shaped to multiply it: (B, 1, …)."""
    return rows_like(change.flatten(1).norm(dim=1), change)


def fraction(value: float | str) -> float:
    """A number, or one written as "8/255".

    >>> fraction("0.5"), fraction("2/255") == 2 / 255
    (0.5, True)
    """
    if not isinstance(value, str):
        return float(value)
    try:
        return float(Fraction(value.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a number or a fraction such as 8/255 is needed; got {value!r}") from None


def shown(value: float) -> str:
    """ε as people write it: 8/255 rather than 0.0314."""
    short, of_255 = f"{value:g}", round(value * 255)
    is_pixel = of_255 > 0 and value < 0.999 and abs(value * 255 - of_255) < 1e-4
    return f"{of_255}/255" if is_pixel and len(short) > 5 else short


def inside(threat: Threat, x_adv: Tensor, x: Tensor) -> Tensor:
    """True where a point is allowed and valid, up to rounding. (B, *) → (B,)."""
    # x ± ε in float32 is off by half a unit in the last place of x.
    rounding = 2 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1) + 1e-5 * threat.epsilon
    change = x_adv - x
    if threat.has_structure:  # in the units of each feature it may be more
        rounded = rows_like(2 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1), x)
        change = change.sign() * (change.abs() - rounded).clamp_min(0)
    close = threat.distance(change, torch.zeros_like(x)) <= threat.epsilon + rounding
    misses = ((x_adv - other).abs().flatten(1).amax(1) for other in
              (threat.into_box(x_adv), threat.valid(x_adv, x)))  # fmt: skip
    boxed, valid = (miss <= rounding for miss in misses)
    return close & boxed & valid  # NaN is in no ball
