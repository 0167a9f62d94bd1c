"""TASER as a term of a loss, against residuals made of finite differences."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import cases
import taser
from taser.objectives import Taser
from taser.objectives.taser import At
from taser.probes import Margin, Probed
from taser.scores import DenoisingScore
from taser.stein.terms import Operator

SIGMA = 0.3


def shrink(x: Tensor, sigma: float) -> Tensor:
    """A denoiser whose score is neither linear nor the same in every direction."""
    scale = torch.linspace(0.2, 0.9, x[0].numel(), dtype=x.dtype).view(x.shape[1:])
    return torch.tanh(scale * x) / (1 + sigma)


def score_of(x: Tensor) -> Tensor:
    """(D(x) − x)/σ², written once more."""
    return (shrink(x, SIGMA) - x) / SIGMA**2


def differences(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """∇f and Δf by central differences: (B, d), (B,).

    Truncation h²/6·f''' is about 1e-8, rounding 1e-16/h² about 1e-8 too.
    """
    h, flat = 1e-4, x.flatten(1)
    gradient, laplacian = torch.zeros_like(flat), torch.zeros(len(x), dtype=x.dtype)
    with torch.no_grad():
        middle = f(x)
        for i in range(flat.shape[1]):
            step = torch.zeros_like(flat)
            step[:, i] = h
            up, down = f((flat + step).view_as(x)), f((flat - step).view_as(x))
            gradient[:, i] = (up - down) / (2 * h)
            laplacian += (up - 2 * middle + down) / h**2
    return gradient, laplacian


@pytest.mark.parametrize("operator", ["first_order", "langevin"])
@pytest.mark.parametrize("at", get_args(At))
def test_the_residual_is_asked_where_it_says(at: At, operator: Operator) -> None:
    case = cases.case("mlp")
    penalty = taser.SteinPenalty(operator=operator, backend="exact")
    regulariser = Taser(penalty, DenoisingScore(shrink, SIGMA), at)
    value = regulariser(case.model, case.x, case.y, generator=torch.Generator().manual_seed(3))

    noise = torch.randn(
        case.x.shape, dtype=case.x.dtype, generator=torch.Generator().manual_seed(3)
    )
    moved = case.x + SIGMA * noise
    points = moved if at == "noised" else case.x
    s = score_of(case.x if at == "clean" else moved)
    if at == "paired":
        s = (s - score_of(case.x - SIGMA * noise)) / 2
    gradient, laplacian = differences(Probed(case.model, Margin(), case.y), points)
    r = (s.flatten(1) * gradient).sum(1)
    if operator == "langevin":
        r = r + laplacian
    torch.testing.assert_close(value, (r - r.mean()).square().mean(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("at", ["mixed", "paired"])
def test_the_drift_is_the_part_of_the_noise_that_is_recognised(at: At) -> None:
    """−(1/σ) ε̂·∇f(x), ε̂ = (x + σε − D)/σ: all of ε when D gives x back."""
    case = cases.case("mlp")
    perfect = DenoisingScore(lambda _, __: case.x, SIGMA)
    penalty = taser.SteinPenalty(operator="first_order", backend="exact", center="none")
    value = Taser(penalty, perfect, at)(
        case.model, case.x, case.y, generator=torch.Generator().manual_seed(0)
    )
    noise = torch.randn(
        case.x.shape, dtype=case.x.dtype, generator=torch.Generator().manual_seed(0)
    )
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    r = -(noise * gradient).sum(1) / SIGMA
    torch.testing.assert_close(value, r.square().mean(), rtol=1e-6, atol=0)


def test_pairs_do_not_see_what_the_denoiser_says_of_the_image_itself() -> None:
    """A denoiser that is wrong by the same at every noise: mixed residuals have it, paired not."""
    case = cases.case("mlp")
    biased = DenoisingScore(lambda _, __: case.x + 0.05, SIGMA)
    unbiased = DenoisingScore(lambda _, __: case.x, SIGMA)
    penalty = taser.SteinPenalty(operator="first_order", backend="exact", center="none")

    def value(score: DenoisingScore, at: At) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return Taser(penalty, score, at)(case.model, case.x, case.y, generator=generator)

    torch.testing.assert_close(value(biased, "paired"), value(unbiased, "paired"))
    assert abs(value(biased, "mixed") / value(unbiased, "mixed") - 1) > 0.1


class Counting:
    """A score that remembers how many examples it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.asked.append(len(x))
        return score_of(x)

    def noised(self, x: Tensor, generator: Any = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return x + 0.1, self(x)

    def paired(self, x: Tensor, generator: Any = None) -> Tensor:  # noqa: ARG002
        return self(x)


@pytest.mark.parametrize("at", get_args(At))
def test_the_score_rests_where_nothing_is_computed(at: At) -> None:
    case, score = cases.case("mlp"), Counting()
    regulariser = Taser(taser.SteinPenalty(every=3, fraction=0.5), score, at)
    values = [float(regulariser(case.model, case.x, case.y).detach()) for _ in range(6)]
    assert [value > 0 for value in values] == [True, False, False] * 2
    assert score.asked == [2, 2]  # half of the batch of four, at each third call


def test_cached_scores_take_the_place_of_a_model() -> None:
    case, score = cases.case("mlp"), Counting()
    plain = taser.SteinPenalty(operator="first_order")(case.model, case.x, case.y, case.s)
    for given in (score, None):
        regulariser = Taser(taser.SteinPenalty(operator="first_order"), given)
        assert torch.equal(regulariser(case.model, case.x, case.y, case.s), plain)
    assert score.asked == []
    with pytest.raises(ValueError, match="needs a score model, or s with each batch"):
        Taser(taser.SteinPenalty(), None)(case.model, case.x, case.y)


def test_cached_scores_are_not_for_noised_points() -> None:
    """The cache holds s(x), and what is wanted is the score elsewhere."""
    case, score = cases.case("mlp"), Counting()
    Taser(taser.SteinPenalty(), score, "mixed")(case.model, case.x, case.y, case.s)
    assert score.asked == [4]


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"at should be one of .*'noised'"):
        Taser(taser.SteinPenalty(), Counting(), "noisy")  # type: ignore[arg-type]
    gaussian = taser.scores.Gaussian(torch.zeros(2))
    with pytest.raises(ValueError, match=r"at='paired' needs a score that can draw.*got Gaussian"):
        Taser(taser.SteinPenalty(), gaussian, "paired")
