"""TASER as a term of a loss, against residuals made of finite differences."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.attacks._threat import Norm, Threat
from taser.probes import Margin, Probed
from taser.regularisers import Taser
from taser.regularisers._taser import At, steepest
from taser.scores import DenoisingScore
from taser.stein._backends import Operator
from taser.training import read_recipe
from taser.training._build import build_data, build_regulariser, unit_of

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
    penalty = taser.SteinPenalty(operator=operator, backend="exact", center=centre_of(at))
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
    if at == "steepest":
        down = -SIGMA * gradient.view_as(case.x).sign()
        s = (score_of(case.x + down) - score_of(case.x - down)) / 2
    r = (s.flatten(1) * gradient).sum(1)
    if operator == "langevin":
        r = r + laplacian
    centre = 0.0 if at == "steepest" else r.mean()
    torch.testing.assert_close(value, (r - centre).square().mean(), rtol=1e-6, atol=0)


def centre_of(at: At) -> str:
    return "none" if at == "steepest" else "batch"


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_where_all_is_noise_the_steepest_drift_is_the_dual_norm(norm: Norm, dual: int) -> None:
    """J = I: r = ‖∇f‖₁/σ for ℓ∞, which is how fast f grows in the ball, and √d·‖∇f‖₂/σ for ℓ2."""
    case = cases.case("mlp")
    perfect = DenoisingScore(lambda _, __: case.x, SIGMA)
    penalty = taser.SteinPenalty(operator="first_order", backend="exact", center="none")
    value = Taser(penalty, perfect, "steepest", norm=norm)(case.model, case.x, case.y)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    r = gradient.norm(p=dual, dim=1) / SIGMA
    if norm == "l2":
        r = r * case.x[0].numel() ** 0.5
    torch.testing.assert_close(value, r.square().mean(), rtol=1e-6, atol=0)


def test_what_lies_along_the_data_does_not_count_for_the_steepest_drift() -> None:
    """A denoiser that keeps the first half of the coordinates: r = Σ |∂f| over the other half."""
    case = cases.case("mlp")
    half = case.x.shape[1] // 2

    def keep_half(x: Tensor, sigma: float) -> Tensor:  # noqa: ARG001
        return torch.cat([x[:, :half], torch.zeros_like(x[:, half:])], 1)

    penalty = taser.SteinPenalty(operator="first_order", backend="exact", center="none")
    value = Taser(penalty, DenoisingScore(keep_half, SIGMA), "steepest")(case.model, case.x, case.y)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    r = gradient[:, half:].abs().sum(1) / SIGMA
    torch.testing.assert_close(value, r.square().mean(), rtol=1e-6, atol=0)


def test_steepest_directions_are_as_large_as_noise() -> None:
    gradient = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    for norm in get_args(Norm):
        v = steepest(gradient, norm)
        torch.testing.assert_close(v.flatten(1).square().mean(1), torch.ones(3))
        assert bool(((v * gradient).flatten(1).sum(1) > 0).all())
        small, large = steepest(1e-25 * gradient, norm), steepest(1e25 * gradient, norm)
        torch.testing.assert_close(small, v)
        torch.testing.assert_close(large, v)
        assert torch.equal(steepest(torch.zeros(2, 3), norm), torch.zeros(2, 3))


def test_a_model_without_a_gradient_has_no_steepest_direction() -> None:
    """A penalty of zero would say that it is flat."""
    case = cases.case("mlp")
    penalty = taser.SteinPenalty(operator="first_order", center="none")
    regulariser = Taser(penalty, DenoisingScore(shrink, SIGMA), "steepest")
    for hides in (lambda x: case.model(x.detach()), lambda x: case.model(x).detach()):
        with pytest.raises(ValueError, match="does not depend on x through autograd"):
            regulariser(hides, case.x, case.y)


def test_inference_tensors_and_dead_networks_have_a_steepest_penalty() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.inference_mode():
        x = torch.rand(4, 1, 4, 4)
    y = torch.arange(4) % 3
    score = DenoisingScore(shrink, SIGMA)
    penalty = taser.SteinPenalty(operator="first_order", center="none")
    assert float(Taser(penalty, score, "steepest")(model, x, y).detach()) > 0
    torch.nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    for whole in (score, taser.scores.Replaced(score, "white")):
        flat = taser.SteinPenalty(operator="first_order", center="none")
        assert float(Taser(flat, whole, "steepest")(model, x.clone(), y).detach()) == 0


def test_the_gradients_of_the_steepest_penalty_are_right() -> None:
    """Against finite differences in the weights; the direction is a constant, as an attack is."""
    case = cases.case("mlp")
    score = DenoisingScore(shrink, SIGMA)
    penalty = taser.SteinPenalty(operator="first_order", backend="reverse", center="none")
    value = Taser(penalty, score, "steepest")(case.model, case.x, case.y)
    weight = next(case.model.parameters())
    (found,) = torch.autograd.grad(value, weight)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    s = score.along(case.x, -gradient.view_as(case.x).sign())
    h, moves = 1e-5, []
    with torch.no_grad():
        for step in (h, -h):
            weight[0, 0] += step
            moves.append(penalty(case.model, case.x, case.y, s))
            weight[0, 0] -= step
    expected = (moves[0] - moves[1]) / (2 * h)
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["batchnorm", "cnn"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    """The direction takes a pass of its own, which running statistics must not notice."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4) if name == "batchnorm" else nn.Identity(),
        nn.SiLU(), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    before = {key: value.clone() for key, value in model.state_dict().items()}
    penalty = taser.SteinPenalty(operator="first_order", center="none")
    value = Taser(penalty, DenoisingScore(shrink, SIGMA), "steepest")(model, x, y)
    assert float(value.detach()) > 0
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[key], now) for key, now in model.state_dict().items())


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

    def along(self, x: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        return self(x)


@pytest.mark.parametrize("at", get_args(At))
def test_the_score_rests_where_nothing_is_computed(at: At) -> None:
    case, score = cases.case("mlp"), Counting()
    penalty = taser.SteinPenalty(every=3, fraction=0.5, center=centre_of(at))
    regulariser = Taser(penalty, score, at)
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
    with pytest.raises(ValueError, match=r"at='steepest' has residuals of nearly one.*got 'batch'"):
        Taser(taser.SteinPenalty(), Counting(), "steepest")
    flat = taser.SteinPenalty(center="none")
    with pytest.raises(ValueError, match=r"at='steepest' needs a score .* `along`.*Gaussian"):
        Taser(flat, gaussian, "steepest")
    with pytest.raises(ValueError, match=r"norm should be one of .*got 'l1'"):
        Taser(flat, Counting(), "steepest", norm="l1")  # type: ignore[arg-type]


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_against_a_threat_a_residual_is_how_far_f_moves_in_the_ball(norm: Norm, dual: int) -> None:
    """J = I and f linear in the ball: R = (ε‖∇f‖)² in the dual norm, whatever σ."""
    case = cases.case("mlp")
    perfect = DenoisingScore(lambda _, __: case.x, SIGMA)
    robust = Taser.against(Threat(norm, 0.2), perfect)
    value = robust(case.model, case.x, case.y)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    moved = 0.2 * gradient.norm(p=dual, dim=1)
    torch.testing.assert_close(value, moved.square().mean(), rtol=1e-6, atol=0)


def test_against_is_what_recipes_have() -> None:
    """The same penalty, in the same unit, as digits/standard with TASER."""
    config = read_recipe("digits/standard", ["regulariser.name=taser"])
    digits = build_data(config.data)
    x, y = digits.train.x[:16], digits.train.y[:16]
    model = taser.models.build("cnn", classes=10, shape=(1, 8, 8), width=4).eval()
    generator = torch.Generator().manual_seed(0)
    theirs = build_regulariser(config.regulariser, digits, generator)
    assert theirs is not None
    threat = Threat("linf", config.objective.epsilon)
    unit = unit_of(config.regulariser, theirs, threat.reach((1, 8, 8)))
    ours = Taser.against(threat, taser.scores.pretrained("digits").at(timestep=50))
    torch.testing.assert_close(ours(model, x, y), unit * theirs(model, x, y))


def test_against_needs_a_threat_and_a_noise_level() -> None:
    with pytest.raises(TypeError, match="such as Threat"):
        Taser.against("linf", DenoisingScore(shrink, SIGMA))  # type: ignore[arg-type]
    assert "against ℓ∞ ε=0.1" in repr(
        Taser.against(Threat("linf", 0.1), DenoisingScore(shrink, SIGMA))
    )
    with pytest.raises(ValueError, match="a score at a noise level"):
        Taser.against(Threat("linf", 0.1), taser.scores.Gaussian(torch.zeros(2)))  # type: ignore[arg-type]
