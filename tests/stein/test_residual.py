"""Every backend against the exact oracle; random probes at the rate that their variance says."""

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.probes import Margin, Probed
from taser.stein import directions
from taser.stein._checks import Backend, Operator
from taser.stein._residual import default_step

OPERATORS: list[Operator] = ["langevin", "first_order"]
SMOOTH = [name for name in cases.MODELS if name != "relu"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def probed(case: cases.Case) -> Probed:
    return Probed(case.model, Margin(), case.y)


def hessians(f: Probed, x: Tensor) -> tuple[Tensor, Tensor]:
    """Full gradients (B, d) and Hessians (B, d, d) from torch.autograd.functional, row by row.

    Attention needs its math kernel here for the same reason as in the library.
    """
    gradients, matrices = [], []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for i in range(len(x)):
            row = Probed(f.model, f.probe, f.y[i : i + 1])  # type: ignore[index]

            def scalar(point: Tensor, row: Probed = row, shape: torch.Size = x.shape) -> Tensor:
                return row(point.view(1, *shape[1:]))[0]

            point = x[i].flatten()
            gradients.append(torch.autograd.functional.jacobian(scalar, point))
            matrices.append(torch.autograd.functional.hessian(scalar, point))
    return torch.stack(gradients), torch.stack(matrices)


@pytest.mark.parametrize("name", cases.MODELS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_exact_is_the_trace_of_the_hessian(name: str, operator: Operator) -> None:
    case = cases.case(name)
    gradient, hessian = hessians(probed(case), case.x)
    expected = (gradient * case.s.flatten(1)).sum(1)
    if operator == "langevin":
        expected = expected + hessian.diagonal(dim1=1, dim2=2).sum(1)
    r = taser.stein_residual(probed(case), case.x, case.s, operator=operator, backend="exact")
    torch.testing.assert_close(r, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", cases.MODELS)
@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_reverse_is_the_quadratic_form_of_its_directions(name: str, chunk: int | None) -> None:
    case = cases.case(name)
    gradient, hessian = hessians(probed(case), case.x)
    v = directions(case.x, 5, generator=generator()).flatten(2)
    forms = torch.einsum("kbi,bij,kbj->kb", v, hessian, v).mean(0)
    r = taser.stein_residual(
        probed(case), case.x, case.s, probes=5, chunk=chunk, generator=generator()
    )
    expected = forms + (gradient * case.s.flatten(1)).sum(1)
    torch.testing.assert_close(r, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_difference_agrees_with_reverse(name: str, operator: Operator, chunk: int | None) -> None:
    """To the truncation error t² ≈ 4e-8 and the rounding eps/t² ≈ 6e-9 of float64."""
    case = cases.case(name)
    both = [
        taser.stein_residual(
            probed(case), case.x, case.s, operator=operator, backend=backend, probes=3,
            chunk=chunk, generator=generator(),
        )
        for backend in ("reverse", "difference")
    ]  # fmt: skip
    torch.testing.assert_close(both[1], both[0], rtol=1e-5, atol=1e-5)


def test_difference_error_falls_with_the_square_of_the_step() -> None:
    case = cases.case("mlp")
    exact, *coarse = (
        taser.stein_residual(
            probed(case), case.x, case.s, backend=backend, step=step, generator=generator()
        )
        for backend, step in (("reverse", None), ("difference", 0.1), ("difference", 0.05))
    )
    errors = [(r - exact).abs().max() for r in coarse]
    assert 3.5 < errors[0] / errors[1] < 4.5


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_step_is_a_share_of_the_spread_of_the_inputs(scale: float) -> None:
    x = scale * (3 + torch.randn(1000, 4, generator=generator()))
    shares = {"langevin": 0.015, "first_order": 0.02}
    for operator, share in shares.items():
        step = default_step(x, operator)  # type: ignore[arg-type]
        assert float(step) == pytest.approx(share * scale, rel=0.05)  # std known to 1/√8000
    for odd in (x[:1], x[:1].repeat(3, 1), torch.zeros(2, 4)):
        assert 0 < default_step(odd, "langevin") < scale


@pytest.mark.parametrize(
    ("step", "operator"), [(1e-5, "langevin"), (1e3, "langevin"), (1e-8, "first_order")]
)
def test_an_absurd_step_is_refused(step: float, operator: Operator) -> None:
    case = cases.case("mlp")
    penalty = taser.SteinPenalty(backend="difference", operator=operator, step=step)
    with pytest.raises(ValueError, match="for inputs with standard deviation"):
        penalty(case.model.float(), case.x.float(), case.y, case.s.float())


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("chunk", [None, 2])
def test_piecewise_linear_agrees_with_reverse(operator: Operator, chunk: int | None) -> None:
    case = cases.case("relu")
    both = [
        taser.stein_residual(
            probed(case), case.x, case.s, operator=operator, backend=backend, probes=3,
            chunk=chunk, generator=generator(),
        )
        for backend in ("reverse", "piecewise_linear")
    ]  # fmt: skip
    torch.testing.assert_close(both[1], both[0], rtol=1e-9, atol=1e-9)


def test_piecewise_linear_laplacian_is_the_variance_formula() -> None:
    """Σ_{j≠y} q_j ‖∇z_j‖² − ‖Σ_{j≠y} q_j ∇z_j‖², with q the softmax over j ≠ y."""
    case = cases.case("relu")
    zero = torch.zeros_like(case.x)
    r = taser.stein_residual(probed(case), case.x, zero, backend="exact")
    for i in range(cases.BATCH):
        jacobian = torch.autograd.functional.jacobian(case.model, case.x[i : i + 1])[0].flatten(1)
        others = torch.arange(3) != case.y[i]
        q = case.model(case.x[i : i + 1])[0, others].softmax(0)
        rows = jacobian[others]
        expected = (q * rows.square().sum(1)).sum() - (q[:, None] * rows).sum(0).square().sum()
        torch.testing.assert_close(r[i], expected)


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_hutchinson_has_the_mean_and_variance_of_theory(distribution: str) -> None:
    """E = Δf; variance 2·Σ_{i≠j}H_ij² (Rademacher) or 2·‖H‖² (Gaussian), over K for K probes."""
    case = cases.case("mlp")
    f, n = probed(case), 4000
    _, hessian = hessians(f, case.x)
    h = hessian.detach()
    off = h - torch.diag_embed(h.diagonal(dim1=1, dim2=2))
    single = 2 * (off if distribution == "rademacher" else h).square().sum((1, 2))
    source = generator(7)
    with torch.no_grad():
        exact = taser.stein_residual(f, case.x, case.s, backend="exact")
        for probes in (1, 4):
            draws = taser.stein_residual(
                Probed(case.model, Margin(), case.y.repeat(n)),
                case.x.repeat(n, 1), case.s.repeat(n, 1), probes=probes,
                distribution=distribution, generator=source,  # type: ignore[arg-type]
            ).view(n, -1)  # fmt: skip
            variance = single / probes
            z = (draws.mean(0) - exact) / (variance / n).sqrt()
            assert z.abs().max() < 4.5
            # A sample variance has relative standard error sqrt((kurtosis − 1)/n), kurtosis ≤ 15.
            assert ((draws.var(0) / variance - 1).abs() < 4.5 * (14 / n) ** 0.5).all()


def test_difference_of_a_kink_is_the_smoothed_laplacian() -> None:
    """For f = |x₁| near its kink the difference sees E over ±t, reverse sees nothing."""
    x, s, t = torch.tensor([[0.01, 0.0]]), torch.zeros(1, 2), 0.03
    near, away = (
        taser.stein_residual(lambda x: x[:, 0].abs(), x + offset, s, backend="difference", step=t)
        for offset in (0.0, 1.0)
    )
    expected = (0.04 + 0.02 - 2 * 0.01) / t**2
    torch.testing.assert_close(near, torch.tensor([expected]), rtol=1e-4, atol=0)
    assert away.abs() < 1e-3
    assert taser.stein_residual(lambda x: x[:, 0].abs(), x, s).abs() < 1e-6


@pytest.mark.parametrize("backend", ["reverse", "difference", "exact"])
def test_a_linear_function_has_no_laplacian(backend: Backend) -> None:
    x, s = torch.randn(2, 3, 4, generator=generator()), torch.zeros(3, 4)
    x, s = x[0], s
    r = taser.stein_residual(lambda x: x.sum(1), x, s, backend=backend)
    # A second difference divides the rounding of its three terms, 4·eps·|f|, by t² = (0.015·0.8)².
    torch.testing.assert_close(r, torch.zeros(3), atol=2e-2, rtol=0)


@pytest.mark.parametrize("backend", ["reverse", "difference", "exact", "piecewise_linear"])
def test_channels_last_inputs_give_the_same(backend: Backend) -> None:
    case = cases.case("relu")
    plain, last = (
        taser.stein_residual(probed(case), x, s, backend=backend, probes=2, generator=generator())
        for x, s in (
            (case.x, case.s),
            tuple(t.to(memory_format=torch.channels_last) for t in (case.x, case.s)),
        )
    )
    torch.testing.assert_close(last, plain)


def test_a_zero_score_gives_a_zero_first_order_difference() -> None:
    x = torch.randn(3, 4, generator=generator())
    r = taser.stein_residual(
        lambda x: x.square().sum(1), x, torch.zeros_like(x),
        operator="first_order", backend="difference",
    )  # fmt: skip
    assert torch.equal(r, torch.zeros(3))


@pytest.mark.parametrize("backend", ["reverse", "difference", "exact", "piecewise_linear"])
def test_without_grad_the_values_are_the_same_and_carry_no_graph(backend: Backend) -> None:
    case = cases.case("relu")
    with_graph = taser.stein_residual(
        probed(case), case.x, case.s, backend=backend, generator=generator()
    )
    with torch.no_grad():
        without = taser.stein_residual(
            probed(case), case.x, case.s, backend=backend, generator=generator()
        )
    assert with_graph.requires_grad
    assert not without.requires_grad
    torch.testing.assert_close(without, with_graph.detach())


def test_coordinates_scale_the_residual_by_the_square() -> None:
    """Under u = a x the residual of the same function is r_x = a² r_u."""
    case, a = cases.case("mlp"), 2.5
    f = probed(case)
    in_u = taser.stein_residual(f, a * case.x, case.s, backend="exact")
    in_x = taser.stein_residual(lambda x: f(a * x), case.x, a * case.s, backend="exact")
    torch.testing.assert_close(in_x, a * a * in_u)


def test_any_callable_with_labels_inside_works_with_every_backend() -> None:
    case = cases.case("mlp")
    margin = Margin()
    for backend in ("reverse", "difference", "exact"):
        plain, reused = (
            taser.stein_residual(
                f, case.x, case.s, backend=backend, probes=3,
                generator=torch.Generator().manual_seed(0),
            )
            for f in (lambda x: margin(case.model(x), case.y), probed(case))
        )  # fmt: skip
        torch.testing.assert_close(plain, reused, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["difference", "reverse", "exact", "piecewise_linear"])
def test_autocast_and_half_inputs_are_computed_in_full_precision(
    dtype: torch.dtype, backend: Backend
) -> None:
    case = cases.case("relu" if backend == "piecewise_linear" else "batchnorm")
    x, s = case.x.to(dtype), case.s.to(dtype)
    f = Probed(case.model.float(), Margin(), case.y)
    plain = taser.stein_residual(f, x.float(), s.float(), backend=backend, generator=generator())
    with torch.autocast("cpu", torch.bfloat16):
        inside = taser.stein_residual(f, x, s, backend=backend, generator=generator())
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, plain)


class Polynomial(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum(1)


GOOD = torch.ones(4, 3)
TWO = torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Polynomial(), GOOD, GOOD[:, :2]), {}, r"\(4, 3\).*got \(4, 2\)"),
        ((Polynomial(), GOOD, GOOD[:3]), {}, r"got \(3, 3\)"),
        ((Polynomial(), GOOD[:, 0], GOOD[:, 0]), {}, r"\(B, \*\)"),
        ((Polynomial(), GOOD.to(torch.uint8), GOOD), {}, r"\[0, 1\]; got torch.uint8"),
        ((Polynomial(), GOOD, GOOD.clone().requires_grad_()), {}, r"s\.detach\(\)"),
        ((Polynomial(), GOOD, GOOD / 0), {}, "12 of 12"),
        ((Polynomial(), GOOD * torch.nan, GOOD), {}, "x should be finite"),
        ((lambda x: x, GOOD, GOOD), {}, r"shape \(4,\); got \(4, 3\)"),
        ((lambda x: x.sum(), GOOD, GOOD), {"backend": "difference"}, r"got \(\)"),
        ((lambda x: x.sum(1, keepdim=True), GOOD, GOOD), {"backend": "exact"}, r"got \(4, 1\)"),
        ((lambda x: x.detach().sum(1), GOOD, GOOD), {}, "does not depend on x"),
        ((Polynomial(), GOOD, GOOD), {"operator": "laplace"}, "'langevin', 'first_order'"),
        ((Polynomial(), GOOD, GOOD), {"backend": "forward"}, "'piecewise_linear'"),
        ((Polynomial(), GOOD, GOOD), {"backend": "piecewise_linear"}, "taser.probes.Probed"),
        ((Polynomial(), GOOD, GOOD), {"distribution": "uniform"}, "'rademacher', 'gaussian'"),
        ((Polynomial(), GOOD, GOOD), {"probes": 0}, "at least 1"),
        ((Probed(nn.Identity(), Margin(), TWO), GOOD, GOOD), {}, r"4 inputs; got shape \(2,\)"),
        ((Polynomial(), GOOD, GOOD), {"step": -1.0}, "positive"),
        ((Polynomial(), GOOD, GOOD), {"chunk": 0}, "at least 1"),
    ],
)  # fmt: skip
def test_bad_input_is_named(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        taser.stein_residual(*arguments, **options)
