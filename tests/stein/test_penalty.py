"""Algorithm 1: centring, unbiasedness, laziness, logging, and a model left as it was."""

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.probes import Logit, Margin, Output, Probed
from taser.stein import _residual
from taser.stein._residual import reverse


def residuals(case: cases.Case) -> Tensor:
    """The exact residuals, (B,), without a graph."""
    with torch.no_grad():
        return taser.stein_residual(
            Probed(case.model, Margin(), case.y), case.x, case.s, backend="exact"
        )


def exact_penalty(case: cases.Case, **options: object) -> Tensor:
    return taser.SteinPenalty(backend="exact", **options)(  # type: ignore[arg-type]
        case.model, case.x, case.y, case.s
    )


def gradient(value: Tensor, model: nn.Module) -> Tensor:
    parts = torch.autograd.grad(
        value, list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.flatten() for part in parts])


@pytest.fixture
def mlp() -> cases.Case:
    return cases.case("mlp")


def test_algorithm_1(mlp: cases.Case) -> None:
    r = residuals(mlp)
    torch.testing.assert_close(exact_penalty(mlp).detach(), (r - r.mean()).square().mean())
    torch.testing.assert_close(exact_penalty(mlp, center="none").detach(), r.square().mean())
    torch.testing.assert_close(exact_penalty(mlp, center=0.3).detach(), (r - 0.3).square().mean())


def test_detaching_the_batch_mean_changes_nothing(mlp: cases.Case) -> None:
    values = [exact_penalty(mlp, detach_mean=detach) for detach in (True, False)]
    gradients = [gradient(value, mlp.model) for value in values]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_running_mean_is_an_average_over_batches_and_its_gradient_can_be_stopped() -> None:
    case = cases.case("mlp")
    r = residuals(case)
    gradients = []
    for detach in (True, False):
        penalty = taser.SteinPenalty(
            backend="exact", center="running", momentum=0.5, detach_mean=detach
        )
        first = penalty(case.model, case.x[:2], case.y[:2], case.s[:2])
        torch.testing.assert_close(first.detach(), (r[:2] - r[:2].mean()).square().mean())
        second = penalty(case.model, case.x[2:], case.y[2:], case.s[2:])
        centre = 0.5 * r[:2].mean() + 0.5 * r[2:].mean()
        torch.testing.assert_close(
            second.detach(), (r[2:] - centre).square().mean(), rtol=1e-6, atol=1e-6
        )
        gradients.append(gradient(second, case.model))
    assert (gradients[0] - gradients[1]).norm() > 1e-3 * gradients[0].norm()


def test_running_mean_rests_in_evaluation_mode(mlp: cases.Case) -> None:
    penalty = taser.SteinPenalty(backend="exact", center="running")
    penalty(mlp.model, mlp.x, mlp.y, mlp.s)
    before = penalty.center.value.clone()
    penalty.eval()(mlp.model, mlp.x + 1, mlp.y, mlp.s)
    assert torch.equal(penalty.center.value, before)
    r = residuals(mlp)
    value = penalty(mlp.model, mlp.x[:2], mlp.y[:2], mlp.s[:2]).detach()
    torch.testing.assert_close(value, (r[:2] - before).square().mean(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("center", ["batch", "none"])
def test_two_probe_sets_make_the_square_unbiased(mlp: cases.Case, center: str) -> None:
    """Mean over many draws against the exact penalty, within standard errors.

    The plain square is too large by the mean variance of the estimate, which is seen as well.
    """
    exact = exact_penalty(mlp, center=center).item()
    means = {}
    for unbiased in (True, False):
        penalty = taser.SteinPenalty(backend="reverse", center=center, unbiased=unbiased)
        with torch.no_grad():
            draws = torch.stack([penalty(mlp.model, mlp.x, mlp.y, mlp.s) for _ in range(1000)])
        means[unbiased] = ((draws.mean() - exact) / (draws.std() / len(draws) ** 0.5)).item()
    assert abs(means[True]) < 4.5
    assert means[False] > 4.5


def test_lazy_penalty_has_the_same_mean_over_a_cycle(mlp: cases.Case) -> None:
    penalty = taser.SteinPenalty(backend="exact", every=3)
    values = [penalty(mlp.model, mlp.x, mlp.y, mlp.s) for _ in range(6)]
    full = exact_penalty(mlp)
    assert [value.item() == 0 for value in values] == [False, True, True] * 2
    torch.testing.assert_close(torch.stack(values).mean(), full)
    assert penalty.last is not None
    torch.testing.assert_close(penalty.last.value, full.detach())
    torch.testing.assert_close(penalty.eval()(mlp.model, mlp.x, mlp.y, mlp.s), full)


@pytest.mark.parametrize("center", ["batch", "none"])
def test_part_of_the_batch_is_unbiased(mlp: cases.Case, center: str) -> None:
    """Averaged over draws, value and gradient are those of the whole batch."""
    full = exact_penalty(mlp, center=center, operator="first_order")
    penalty = taser.SteinPenalty(
        operator="first_order", backend="reverse", fraction=0.5, center=center
    )
    values, gradients = [], []
    for _ in range(400):
        value = penalty(mlp.model, mlp.x, mlp.y, mlp.s)
        values.append(value.detach())
        gradients.append(gradient(value, mlp.model))
    for draws, expected in (
        (torch.stack(values)[:, None], full.detach()[None]),
        (torch.stack(gradients), gradient(full, mlp.model)),
    ):
        spread = draws.std(0) / len(draws) ** 0.5
        z = (draws.mean(0) - expected)[spread > 1e-9] / spread[spread > 1e-9]
        assert z.abs().max() < 4.5
    torch.testing.assert_close(
        penalty.eval()(mlp.model, mlp.x, mlp.y, mlp.s).detach(), full.detach()
    )


@pytest.mark.parametrize("options", [{"distribution": "gaussian"}, {"chunk": 1}])
def test_options_reach_the_residual(
    mlp: cases.Case, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict = {}

    def spy(*arguments: object, **named: object) -> object:
        given.update(named)
        return _residual.residuals(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("taser.stein._penalty.residuals", spy)
    taser.SteinPenalty(backend="reverse", probes=3, **options)(mlp.model, mlp.x, mlp.y, mlp.s)
    assert given | options == given


@pytest.mark.parametrize("center", [0.3, "running"])
def test_two_probe_sets_share_a_centre_that_is_not_the_batch_mean(
    mlp: cases.Case, center: float | str
) -> None:
    """R = mean of (one − c)(two − c), with c the given number or the mean of this first batch."""
    penalty = taser.SteinPenalty(backend="reverse", center=center, unbiased=True, momentum=0.0)
    value = penalty(mlp.model, mlp.x, mlp.y, mlp.s).item()
    source = torch.Generator().manual_seed(0)
    f = Probed(mlp.model, Margin(), mlp.y)
    v = taser.stein.directions(mlp.x, 2, generator=source)
    one, two = reverse(f, mlp.x, mlp.s, v, "langevin").detach()
    c = center if isinstance(center, float) else (0.5 * (one + two)).mean()
    assert value == pytest.approx(float(((one - c) * (two - c)).mean()))


def test_the_record_has_the_residuals_in_numbers(mlp: cases.Case) -> None:
    penalty = taser.SteinPenalty(backend="exact")
    assert penalty.last is None
    value = penalty(mlp.model, mlp.x, mlp.y, mlp.s).item()
    assert penalty.last is not None
    assert penalty.last.backend == "exact"
    mean = pytest.approx(residuals(mlp).mean().item())
    assert penalty.last.numbers() == {
        "value": pytest.approx(value), "mean": mean, "std": pytest.approx(value**0.5)
    }  # fmt: skip


def test_regression_and_single_logit_probes() -> None:
    case = cases.case("mlp")
    for probe, labels in ((Output(2), None), (Logit(2), None), (lambda z, _: z[:, 2], case.y)):
        value = taser.SteinPenalty(probe, backend="exact")(case.model, case.x, labels, case.s)
        r = taser.stein_residual(lambda x: case.model(x)[:, 2], case.x, case.s, backend="exact")
        torch.testing.assert_close(value, (r - r.mean()).square().mean())


def test_without_grad_it_is_a_number(mlp: cases.Case) -> None:
    with torch.no_grad():
        assert not taser.SteinPenalty()(mlp.model, mlp.x, mlp.y, mlp.s).requires_grad


def test_one_example_has_no_variance(mlp: cases.Case) -> None:
    value = taser.SteinPenalty()(mlp.model, mlp.x[:1], mlp.y[:1], mlp.s[:1])
    assert value.item() == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operator": "stein"}, "'langevin', 'first_order'"),
        ({"backend": "fast"}, "'auto'"),
        ({"center": "median"}, "'running'"),
        ({"distribution": "cauchy"}, "'gaussian'"),
        ({"probes": 0}, "at least 1"),
        ({"every": 0}, "at least 1"),
        ({"fraction": 0.0}, r"\(0, 1\]"),
        ({"momentum": 1.0}, r"\[0, 1\)"),
        ({"every": 2.5}, "whole number"),
        ({"probes": 1.5}, "whole number"),
        ({"chunk": True}, "whole number"),
        ({"center": float("nan")}, "finite number"),
        ({"step": float("inf")}, "finite"),
        ({"probe": "margin"}, "callable"),
        ({"generator": 3}, "generator should be a.*Generator"),
        ({"probe": taser.probes.Margin}, "probe should be a callable"),
    ],
)
def test_a_wrong_option_is_refused_at_construction(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        taser.SteinPenalty(**options)


def test_bad_batches_are_named_at_the_first_call(mlp: cases.Case) -> None:
    wrong = [
        ((mlp.x, mlp.y, mlp.s[:2]), r"got \(2, 6\)"),
        ((mlp.x, mlp.y + 3, mlp.s), "0…2"),
        ((mlp.x, mlp.y.numpy(), mlp.s), "y should be a tensor"),
        ((mlp.x, mlp.y, mlp.s.numpy()), "s should be a tensor"),
        ((mlp.x.float(), mlp.y, mlp.s), r"x = float32 \(4, 6\), .*Double"),
        (((255 * mlp.x).byte(), mlp.y, mlp.s), "got torch.uint8"),
        ((mlp.x, mlp.y, mlp.s.byte()), "score s should be floating point, .*; got torch.uint8"),
        ((mlp.x, mlp.y[:3], mlp.s), r"each of the 4 inputs; got shape \(3,\)"),
        ((mlp.x, mlp.y[0], mlp.s), r"each of the 4 inputs; got shape \(\)"),
        ((mlp.x, mlp.y, mlp.s * torch.inf), "finite"),
        ((mlp.x, mlp.y, mlp.s.clone().requires_grad_()), "detach"),
        ((mlp.x.long(), mlp.y, mlp.s), "int64"),
        ((mlp.x, mlp.y, mlp.s.long()), "score s should be floating point"),
        ((mlp.x.numpy(), mlp.y, mlp.s), "x should be a tensor"),
        ((mlp.x[:0], mlp.y[:0], mlp.s[:0]), r"a batch of inputs, .*; got shape \(0, 6\)"),
        (
            (mlp.x, mlp.y, taser.scores.Gaussian(torch.zeros(6))),
            "s should be a tensor.* got .*Gaussian",
        ),
    ]
    for arguments, message in wrong:
        with pytest.raises((ValueError, TypeError), match=message):
            taser.SteinPenalty()(mlp.model, *arguments)
    pair = taser.models.Wrapped(lambda x: (mlp.model(x),), mlp.model)
    with pytest.raises(ValueError, match=r"Margin wants logits .*got a tuple"):
        taser.SteinPenalty()(pair, mlp.x, mlp.y, mlp.s)
    penalty = taser.SteinPenalty()
    penalty(mlp.model, mlp.x, mlp.y, mlp.s)
    with pytest.raises(ValueError, match="0…2"):  # and later ones too, on a CPU
        penalty(mlp.model, mlp.x, mlp.y + 3, mlp.s)
    for name, x, s in (("x", mlp.x / 0, mlp.s), ("the score s", mlp.x, mlp.s * torch.nan)):
        with pytest.raises(ValueError, match=f"{name} should be finite"):
            penalty(mlp.model, x, mlp.y, s)


def test_bytes_instead_of_pixels_are_noticed_once() -> None:
    case = cases.case("batchnorm")
    penalty = taser.SteinPenalty(operator="first_order")
    with pytest.warns(UserWarning, match="divide bytes by 255"):
        penalty(case.model, 255 * case.x.abs(), case.y, case.s)
    penalty(case.model, 255 * case.x.abs(), case.y, case.s)  # filterwarnings = error


def test_a_seed_says_which_directions_are_drawn(mlp: cases.Case) -> None:
    one, same, other = (
        taser.SteinPenalty(backend="reverse", seed=seed)(mlp.model, mlp.x, mlp.y, mlp.s).item()
        for seed in (0, 0, 1)
    )
    assert one == same != other


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_scores_of_another_batch_are_refused_whatever_part_is_drawn(
    mlp: cases.Case, fraction: float
) -> None:
    """The cached scores of the whole data set instead of the batch's."""
    penalty = taser.SteinPenalty(fraction=fraction)
    whole = mlp.s.repeat(10, *[1] * (mlp.s.ndim - 1))
    with pytest.raises(ValueError, match="the score s should have the shape"):
        penalty(mlp.model, mlp.x, mlp.y, whole)
    with pytest.raises((ValueError, TypeError), match="s should be a tensor"):
        penalty(mlp.model, mlp.x, mlp.y, mlp.s.tolist())
