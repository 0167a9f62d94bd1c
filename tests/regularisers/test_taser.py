"""TASER as a term of a loss, against residuals made of finite differences."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.attacks._threat import Norm, Threat
from taser.probes import Margin, Probed
from taser.regularisers._taser import FORMS, FormName, steepest
from taser.scores import DenoisingScore
from taser.stein._checks import Operator
from taser.training import read_recipe
from taser.training._build import build_data, build_regulariser

Taser = partial(taser.Taser, fraction=1.0)  # so that nothing but the forms' noise is drawn
SIGMA = 0.3
THREAT, PIXELS = Threat("linf", 0.2, low=None, high=None), Threat("linf", 0.2)
STEEPEST = (0.2 * SIGMA) ** 2  # the unit of the default form under THREAT


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


def draw(x: Tensor, seed: int = 0) -> Tensor:
    """The noise that a regulariser with this seed draws first."""
    return torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("operator", [None, "first_order", "langevin"])
@pytest.mark.parametrize("form", get_args(FormName))
def test_each_form_is_the_residual_that_it_says(form: FormName, operator: Operator | None) -> None:
    case = cases.case("mlp")
    score = DenoisingScore(shrink, SIGMA)
    regulariser = Taser(
        score, threat=THREAT, form=form, operator=operator, backend="exact", seed=3, every=1
    )
    value = regulariser(case.model, case.x, case.y)

    noise = SIGMA * draw(case.x, seed=3)
    points = case.x + noise if form == "noised" else case.x
    s = score_of(case.x if form == "paper" else case.x + noise)
    if form == "paired":
        s = (s - score_of(case.x - noise)) / 2
    gradient, laplacian = differences(Probed(case.model, Margin(), case.y), points)
    if form == "steepest":
        down = -SIGMA * gradient.view_as(case.x).sign()
        s = (score_of(case.x + down) - score_of(case.x - down)) / 2
    r = (s.flatten(1) * gradient).sum(1)
    if (operator or FORMS[form].operator) == "langevin":
        r = r + laplacian
    centre = 0.0 if form == "steepest" else r.mean()
    unit = {"steepest": STEEPEST, "paper": 1.0}.get(form, SIGMA**2)
    expected = unit * (r - centre).square().mean()
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def knows(x: Tensor, bias: float = 0.0) -> DenoisingScore:
    """Of the denoiser that returns x, once or for each of several points about it."""
    return DenoisingScore(lambda noised, _: x.repeat(len(noised) // len(x), 1) + bias, SIGMA)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", torch.inf)])
def test_where_all_is_noise_r_is_how_far_f_moves_in_the_ball(norm: Norm, dual: float) -> None:
    """J = I and f linear in the ball: R = (ε‖∇f‖)² in the dual norm, whatever σ."""
    case = cases.case("mlp")
    perfect = knows(case.x)
    value = Taser(perfect, threat=Threat(norm, 0.2, None, None), backend="exact", every=1)(
        case.model, case.x, case.y
    )
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    moved = 0.2 * gradient.norm(p=dual, dim=1)
    torch.testing.assert_close(value, moved.square().mean(), rtol=1e-6, atol=0)


def test_what_lies_along_the_data_does_not_count() -> None:
    """A denoiser that keeps the first half of the coordinates: r = ε Σ |∂f| over the other half."""
    case = cases.case("mlp")
    half = case.x.shape[1] // 2

    def keep_half(x: Tensor, sigma: float) -> Tensor:  # noqa: ARG001
        return torch.cat([x[:, :half], torch.zeros_like(x[:, half:])], 1)

    robust = Taser(DenoisingScore(keep_half, SIGMA), threat=THREAT, backend="exact", every=1)
    value = robust(case.model, case.x, case.y)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    r = 0.2 * gradient[:, half:].abs().sum(1)
    torch.testing.assert_close(value, r.square().mean(), rtol=1e-6, atol=0)


def test_steepest_directions_are_as_large_as_noise() -> None:
    gradient = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    for norm in get_args(Norm):
        threat = Threat(norm, 0.2, low=None, high=None)
        v = steepest(gradient, threat)
        torch.testing.assert_close(v.flatten(1).square().mean(1), torch.ones(3))
        assert bool(((v * gradient).flatten(1).sum(1) > 0).all())
        small, large = (steepest(size * gradient, threat) for size in (1e-25, 1e25))
        torch.testing.assert_close(small, v)
        torch.testing.assert_close(large, v)
        assert torch.equal(steepest(torch.zeros(2, 3), threat), torch.zeros(2, 3))


def test_a_model_without_a_gradient_has_no_steepest_direction() -> None:
    """A penalty of zero would mean that it is flat."""
    case = cases.case("mlp")
    robust = Taser(DenoisingScore(shrink, SIGMA), threat=THREAT)
    for hides in (lambda x: case.model(x.detach()), lambda x: case.model(x).detach()):
        with pytest.raises(ValueError, match="does not depend on x through autograd"):
            robust(taser.models.Wrapped(hides, case.model), case.x, case.y)


def test_inference_tensors_and_dead_networks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.inference_mode():
        x = torch.rand(4, 1, 4, 4)
    y = torch.arange(4) % 3
    score = DenoisingScore(shrink, SIGMA)
    assert float(Taser(score, threat=THREAT)(model, x, y).detach()) > 0
    torch.nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    assert float(Taser(score, threat=THREAT)(model, x.clone(), y).detach()) == 0


def test_the_gradients_of_the_steepest_form_are_right() -> None:
    """Against finite differences in the weights; the direction is a constant, as an attack is."""
    case = cases.case("mlp")
    score = DenoisingScore(shrink, SIGMA)
    robust = Taser(score, threat=THREAT, backend="reverse", every=1)
    weight = next(case.model.parameters())
    (found,) = torch.autograd.grad(robust(case.model, case.x, case.y), weight)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    s = score.along(case.x, -gradient.view_as(case.x).sign())
    penalty = taser.SteinPenalty(operator="first_order", backend="reverse", center="none")
    h, moves = 1e-5, []
    with torch.no_grad():
        for step in (h, -h):
            weight[0, 0] += step
            moves.append(STEEPEST * penalty(case.model, case.x, case.y, s))
            weight[0, 0] -= step
    expected = (moves[0] - moves[1]) / (2 * h)
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("form", get_args(FormName))
@pytest.mark.parametrize("norm", ["batchnorm", "none"])
def test_the_model_is_left_as_it_was(norm: str, form: FormName) -> None:
    """The direction needs a pass of its own, which must not change running statistics."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4) if norm == "batchnorm" else nn.Identity(),
        nn.SiLU(), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    before = {key: value.clone() for key, value in model.state_dict().items()}
    value = Taser(DenoisingScore(shrink, SIGMA), threat=THREAT, form=form)(model, x, y)
    assert float(value.detach()) > 0
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[key], now) for key, now in model.state_dict().items())


@pytest.mark.parametrize("form", get_args(FormName))
def test_a_part_of_the_batch_is_normalised_by_the_whole(form: FormName) -> None:
    """BatchNorm in training mode: R of half the rows is the mean over halves of one function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(16, 6).double(), torch.arange(16) % 3
    score = DenoisingScore(shrink, SIGMA)
    whole = Taser(score, threat=THREAT, form=form, center="none", backend="exact")
    part = Taser(score, threat=THREAT, form=form, center="none", backend="exact", fraction=0.25)
    with torch.no_grad():
        draws = torch.stack([part(model, x, y) for _ in range(400)])
        full = torch.stack([whole(model, x, y) for _ in range(400)])
    error = (draws.var() / len(draws) + full.var() / len(full)).sqrt()
    assert abs(draws.mean() - full.mean()) < 4.5 * error + 1e-9


@pytest.mark.parametrize("form", ["mixed", "paired"])
def test_the_drift_is_the_part_of_the_noise_that_is_recognised(form: FormName) -> None:
    """−(1/σ) ε̂·∇f(x), ε̂ = (x + σε − D)/σ: all of ε when D returns x."""
    case = cases.case("mlp")
    perfect = knows(case.x)
    value = Taser(perfect, form=form, center="none", backend="exact")(case.model, case.x, case.y)
    gradient, _ = differences(Probed(case.model, Margin(), case.y), case.x)
    r = -(draw(case.x) * gradient).sum(1)
    torch.testing.assert_close(value, r.square().mean(), rtol=1e-6, atol=0)


def test_pairs_cancel_a_bias_of_the_denoiser_at_x() -> None:
    """A denoiser with a constant bias: mixed residuals contain it, paired ones do not."""
    case = cases.case("mlp")
    biased = knows(case.x, bias=0.05)
    unbiased = knows(case.x)

    def value(score: DenoisingScore, form: FormName) -> Tensor:
        robust = Taser(score, form=form, center="none", backend="exact")
        return robust(case.model, case.x, case.y)

    torch.testing.assert_close(value(biased, "paired"), value(unbiased, "paired"))
    assert abs(value(biased, "mixed") / value(unbiased, "mixed") - 1) > 0.1


class Counting:
    """A score that counts the examples that it is called with."""

    sigma = SIGMA

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        return score_of(x)

    def noised(self, x: Tensor, generator: Any = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return x + 0.1, self(x)

    def paired(self, x: Tensor, generator: Any = None) -> Tensor:  # noqa: ARG002
        return self(x)

    def along(self, x: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        return self(x)


@pytest.mark.parametrize("form", get_args(FormName))
def test_the_score_is_computed_for_the_examples_that_count_only(form: FormName) -> None:
    case, score = cases.case("mlp"), Counting()
    regulariser = Taser(score, threat=THREAT, form=form, every=3, fraction=0.5)
    values = [float(regulariser(case.model, case.x, case.y).detach()) for _ in range(6)]
    assert [value > 0 for value in values] == [True, False, False] * 2
    assert score.calls == [2, 2]  # half of the batch of four, at each third call


def test_cached_scores_take_the_place_of_the_model() -> None:
    """For the paper's form; the other forms need the score at other points than x."""
    case, score = cases.case("mlp"), Counting()
    paper = Taser(score, form="paper", operator="first_order")
    plain = taser.SteinPenalty(operator="first_order")(case.model, case.x, case.y, case.s)
    assert torch.equal(paper(case.model, case.x, case.y, case.s), plain)
    assert score.calls == []
    with pytest.raises(ValueError, match="form='mixed' computes its own score"):
        Taser(score, form="mixed")(case.model, case.x, case.y, case.s)


def test_the_unit_of_the_paper_is_of_a_diffusion_model_s_coordinates() -> None:
    """u = 2x − 1 has r_u = r_x/4; a score in closed form, or a table without a box, is in x's."""
    case, score = cases.case("mlp"), DenoisingScore(shrink, SIGMA)
    table, images = Threat("linf", 0.2, low=None, high=None), torch.zeros(2, 1, 4, 4)
    bytes_ = Threat("linf", 8.0, low=0.0, high=255.0)
    units = [
        *(
            Taser(score, form="paper", threat=t).weight_scale(images)
            for t in (None, PIXELS, bytes_, table)
        ),
        Taser(score, form="paper").weight_scale(case.x),
        Taser(taser.scores.Gaussian(torch.zeros(6)), form="paper").weight_scale(case.x),
    ]  # fmt: skip
    assert units == [1 / 16, 1 / 16, 127.5**4, 1.0, 1.0, 1.0]


def test_inputs_that_are_normalised_in_the_data_are_noticed_once() -> None:
    case, robust = cases.case("mlp"), Taser(DenoisingScore(shrink, SIGMA), threat=PIXELS)
    x = case.x.clamp(0, 1)
    robust(case.model, x, case.y)  # filterwarnings = error
    other = Taser(DenoisingScore(shrink, SIGMA), threat=PIXELS)
    with pytest.warns(UserWarning, match=r"outside the range \[0, 1\].*normalisation="):
        other(case.model, 2 * x - 1, case.y)
    other(case.model, 2 * x - 1, case.y)


def test_nan_anywhere_in_the_batch_is_refused_at_every_call() -> None:
    """Whichever part of the batch is drawn."""
    case = cases.case("mlp")
    robust = taser.Taser(DenoisingScore(shrink, SIGMA), threat=THREAT, fraction=0.5, every=1)
    robust(case.model, case.x, case.y)
    for row in range(len(case.x)):
        x = case.x.clone()
        x[row, 0] = torch.nan
        with pytest.raises(ValueError, match="x should be finite; 1 of 24 entries are not"):
            robust(case.model, x, case.y)


def test_wrong_options() -> None:
    score = DenoisingScore(shrink, SIGMA)
    with pytest.raises(ValueError, match=r"form should be one of .*'noised'.*got 'noisy'"):
        Taser(score, form="noisy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"form='steepest' needs the threat"):
        Taser(score)
    with pytest.raises(TypeError, match=r"threat should be of type Threat"):
        Taser(score, threat="linf")  # type: ignore[arg-type]
    gaussian = taser.scores.Gaussian(torch.zeros(2))
    for form in ("steepest", "paired", "mixed", "noised"):
        with pytest.raises(ValueError, match=rf"form='{form}' needs a score at a noise.*Gaussian"):
            Taser(gaussian, threat=THREAT, form=form)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"form='paper' needs a score model.*NoneType"):
        Taser(None, form="paper")
    assert "form='steepest', threat=ℓ∞ ε=0.2" in repr(Taser(score, threat=THREAT))


def test_the_constructor_makes_what_recipes_have() -> None:
    """The same penalty as digits/standard with TASER."""
    config = read_recipe("digits/standard", ["regulariser.name=taser"])  # with fraction: 1.0
    digits = build_data(config.data)
    x, y = digits.train.x[:16], digits.train.y[:16]
    model = taser.models.build("cnn", classes=10, shape=(1, 8, 8), width=4).eval()
    threat = Threat("linf", config.objective.epsilon)
    theirs = build_regulariser(config.regulariser, digits, threat, torch.Generator())
    assert theirs is not None
    ours = Taser(taser.scores.pretrained("digits").at(timestep=50), threat=threat)
    assert (ours.every, theirs.every) == (2, 1)
    torch.testing.assert_close(ours(model, x, y), 2 * theirs(model, x, y))


def test_the_steepest_form_uses_a_part_of_the_batch_in_each_second_step() -> None:
    score = DenoisingScore(shrink, SIGMA)
    assert taser.Taser(score, threat=THREAT).fraction == FORMS["steepest"].fraction < 1
    assert taser.Taser(score, form="paper").fraction == 1
    assert taser.Taser(score, threat=THREAT, fraction=0.7).fraction == 0.7
    assert taser.Taser(score, threat=THREAT).every == FORMS["steepest"].every == 2
    assert taser.Taser(score, form="paper").every == 1
    assert taser.Taser(score, threat=THREAT, every=3).every == 3


@pytest.mark.parametrize("y", [torch.zeros(16), torch.eye(3)[torch.arange(16) % 3]])
def test_errors_show_wrong_labels_as_they_were_given(y: Tensor) -> None:
    """Not as those of the quarter of the batch that the penalty is computed on."""
    penalty = taser.regularisers.GradientNorm(fraction=0.25)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"one whole number for each input; got torch.float32, in"):
        penalty(model, torch.rand(16, 1, 2, 2), y)


def test_a_score_that_works_in_place_leaves_the_inputs_alone() -> None:
    """One that takes a gradient of its own, say."""
    case = cases.case("mlp")
    x = case.x.clone()

    def score(x: Tensor) -> Tensor:
        x.requires_grad_()
        return torch.autograd.grad(-x.square().sum() / 2, x)[0]

    robust = Taser(score, form="paper")
    robust(case.model, x, case.y)
    assert not x.requires_grad


def test_a_forward_that_no_penalty_follows_is_not_recorded() -> None:
    case = cases.case("mlp")
    robust = Taser(DenoisingScore(shrink, SIGMA), threat=THREAT).attach(case.model.train())
    recorded = []
    for _ in range(4):
        outputs = case.model(case.x)
        assert robust._recorder is not None
        recorded.append(len(robust._recorder._passes))
        (outputs.mean() + robust(case.model, case.x, case.y)).backward()
    assert recorded == [1, 0, 1, 0]
