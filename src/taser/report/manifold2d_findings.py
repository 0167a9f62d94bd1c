"""What the manifold study says, in sentences that are put together from its numbers."""

from operator import attrgetter
from statistics import fmean, geometric_mean

from taser.studies.manifold2d import ON_CURVE, PLAIN, Result
from taser.studies.matched import Part

TITLES = {
    PLAIN: "plain",
    "isotropic": "isotropic",
    "first-order": "TASER, first order",
    "taser": "TASER",
    ON_CURVE: "TASER, residual on the curve",
}


def verdict(result: Result) -> str:
    """Whether Figure 1 holds, at equal tangential sensitivity."""
    question = (
        "Does TASER take sensitivity across the data away and keep it along them, better than a "
        "penalty on the whole gradient, as Figure 1 of the paper draws it? "
    )
    factors = at_equal(result, "tangent", "isotropic", "normal")
    if not factors:
        return question + (
            "These runs cannot tell: the penalties reach no tangential sensitivity in common with "
            "every seed. A wider range of strengths would help."
        )
    answer = "Yes" if min(factors) > 1 else "No" if max(factors) < 1 else "Not always"
    return question + (
        f"{answer}, in this plane: at equal tangential sensitivity "
        f"({_levels(result, 'tangent')}) the isotropic penalty leaves {_times(factors)} the normal "
        f"sensitivity that TASER leaves. {clean_there(result, 'isotropic')}"
    )


def along(result: Result) -> str:
    """How much tangential sensitivity TASER leaves, also at equal normal sensitivity."""
    plain = _mean(result, PLAIN, 0.0, "tangent")
    left = [_mean(result, "taser", strength, "tangent") for strength in result.config.strengths]
    untouched = "is left as it was" if min(left) > 0.9 * plain else "is not left untouched"
    text = (
        f"With TASER, sensitivity along the curve {untouched}: {plain:.3g} after plain training, "
        f"{left[0]:.3g} at the weakest strength and {left[-1]:.3g} at the strongest."
    )
    factors = at_equal(result, "normal", "isotropic", "tangent")
    if not factors:
        return text
    return text + (
        f" At equal normal sensitivity ({_levels(result, 'normal')}) the isotropic penalty leaves "
        f"{_times(factors)} as much of it as TASER."
    )


def at_no_price(result: Result) -> str:
    """The normal share at the greatest strength that costs no clean accuracy."""
    shown = {PLAIN: 0.0, **{m: result.affordable(m) for m in ("isotropic", "taser")}}
    ratios = [f"{_mean(result, m, s, 'ratio'):.2g} ({TITLES[m]})" for m, s in shown.items()]
    text = (
        "With each penalty at the greatest strength that costs at most "
        f"{_points(result)} of clean accuracy, normal over tangential sensitivity is "
        f"{', '.join(ratios)}."
    )
    floor = result.accuracy(PLAIN, 0.0) - result.config.allowance
    paying = [TITLES[m] for m, s in shown.items() if result.accuracy(m, s) < floor]
    if paying:
        text += f" None was that cheap for {' and '.join(paying)}: its weakest is meant."
    return text


def robustness(result: Result) -> str:
    """Accuracy under perturbations, each method at its best strength."""
    parts = []
    for name, entry in (("across the curve", "accuracy_normal"), ("anywhere", "accuracy_any")):
        plain = 100 * _mean(result, PLAIN, 0.0, entry)
        iso, ours = (_best(result, method, entry) for method in ("isotropic", "taser"))
        leads = [100 * (b - a) for a, b in zip(iso, ours, strict=True)]
        unclear = "" if min(leads) > 0 or max(leads) < 0 else ", so no clear difference"
        parts.append(
            f"{name} {plain:.1f} % (plain), {100 * fmean(iso):.1f} % (isotropic), "
            f"{100 * fmean(ours):.1f} % (TASER; its lead is {min(leads):+.1f} to {max(leads):+.1f} "
            f"points over seeds{unclear})"
        )
    return (
        f"Accuracy when points are pushed by up to {result.config.eps:g}, each penalty at its best "
        f"strength: {'; '.join(parts)}. Boundaries square to the curve would keep about "
        f"{100 * result.ceiling:.1f} % of points pushed anywhere."
    )


def laplacian(result: Result) -> str:
    """What the first-order operator changes."""
    factors = at_equal(result, "tangent", "first-order", "normal")
    if not factors:
        return "The full and the first-order operator have no tangential sensitivity in common."
    factor = geometric_mean(factors)
    effect = "hardly matters" if 0.8 < factor < 1.25 else "helps" if factor > 1 else "does not help"
    return (
        f"For the normal sensitivity the Laplacian {effect} here: the first-order operator leaves "
        f"{_times(factors)} that of the full one, at equal tangential sensitivity. "
        f"{clean_there(result, 'first-order')}"
    )


def where(result: Result) -> str:
    """What taking the residual on the curve itself changes."""
    strength, measured = result.control()
    control, ours = fmean(m.ratio for m in measured), _mean(result, "taser", strength, "ratio")
    text = (
        "A control takes TASER's residual at the nearest point of the curve instead of at the data "
        f"themselves, with the same score and strength ({strength:g}). Normal over tangential "
        f"sensitivity is then {control:.2g}, against {ours:.2g} at the data and "
        f"{_mean(result, PLAIN, 0.0, 'ratio'):.2g} without a penalty. "
    )
    if control > 2 * ours:
        return text + (
            "On the curve the score is nearly zero and says nothing of the normal direction: the "
            "penalty needs points that are spread as widely as the noise the score belongs to."
        )
    return text + "So it makes no great difference where the residual is taken."


def at_equal(result: Result, part: Part, over: str, other: Part) -> list[float]:
    """`other` under the method `over`, divided by TASER's, where the two are equal in `part`.

    One number for each common level and seed; none if there is no level.
    """
    return [
        getattr(theirs, other) / getattr(ours, other)
        for level in result.levels(part, over)
        for ours, theirs in zip(
            result.matched("taser", part, level), result.matched(over, part, level), strict=True
        )
    ]


def clean_there(result: Result, other: str) -> str:
    """Clean accuracy of TASER and another method at the common tangential levels."""
    levels = result.levels("tangent", other)
    ours, theirs = (
        100 * fmean(p.accuracy for level in levels for p in result.matched(m, "tangent", level))
        for m in ("taser", other)
    )
    return f"Clean accuracy there is {ours:.1f} % (TASER) and {theirs:.1f} % ({TITLES[other]})."


def _mean(result: Result, method: str, strength: float, entry: str) -> float:
    return fmean(map(attrgetter(entry), result.over_seeds(method, strength)))


def _best(result: Result, method: str, entry: str) -> list[float]:
    """An entry for each seed, at the strength whose mean is highest."""
    best = max(result.config.strengths, key=lambda s: _mean(result, method, s, entry))
    return list(map(attrgetter(entry), result.over_seeds(method, best)))


def _levels(result: Result, part: Part) -> str:
    levels = result.levels(part)
    seeds = len(result.config.seeds)
    return f"{levels[0]:.2g} to {levels[-1]:.2g}, {seeds} seed{'s' if seeds > 1 else ''}"


def _times(factors: list[float]) -> str:
    return f"{geometric_mean(factors):.2g} times ({min(factors):.2g} to {max(factors):.2g})"


def _points(result: Result) -> str:
    points = 100 * result.config.allowance
    return f"{points:g} point{'' if points == 1 else 's'}"
