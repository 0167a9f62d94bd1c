"""Statistics of out-of-distribution inputs, where their values have closed forms."""

import pytest
import torch
from torch import Tensor, nn

from taser.evaluation._out_of_distribution import ood_statistics, out_of_distribution, resized
from taser.scores import Gaussian


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 3)).double().eval()


def test_statistics_are_what_their_formulas_say(model: nn.Module) -> None:
    x = torch.randn(7, 5, generator=generator(), dtype=torch.float64)
    score = Gaussian(torch.zeros(5, dtype=torch.float64), 2.0)
    found = ood_statistics(model, score, x, batch_size=3)
    z = model(x).detach().float()
    torch.testing.assert_close(found["energy"], -z.exp().sum(1).log().double())
    torch.testing.assert_close(found["max softmax"], -z.softmax(1).amax(1).double())
    torch.testing.assert_close(found["score norm"], x.norm(dim=1) / 2)

    def probe(row: Tensor) -> Tensor:
        z = model(row)
        others = torch.cat([z[:top], z[top + 1 :]])
        return others.logsumexp(0) - z[top]

    for i, row in enumerate(x):
        top = int(model(row).argmax())
        gradient = torch.autograd.functional.jacobian(probe, row)
        drift = float(gradient @ score(row[None])[0])
        # "auto" takes a difference with t = 0.01, whose error is of order t² here.
        assert float(found["first-order residual"][i]) == pytest.approx(drift, abs=1e-3)


def test_more_probes_come_closer_to_the_laplacian(model: nn.Module) -> None:
    x = torch.randn(4, 5, generator=generator(), dtype=torch.float64)
    score = Gaussian(torch.zeros(5, dtype=torch.float64))

    def residual(probes: int, seed: int = 0) -> Tensor:
        return ood_statistics(model, score, x, probes=probes, seed=seed)["Stein residual"]

    few, many = torch.stack([residual(1, seed) for seed in range(64)]), residual(512)
    error = few.std(0) * (1 / 64 + 1 / 512) ** 0.5
    assert bool(((few.mean(0) - many).abs() < 4 * error + 1e-3).all())


def test_the_score_detects_far_inputs_and_not_near_ones(model: nn.Module) -> None:
    data = Gaussian(torch.zeros(5, dtype=torch.float64), 1.0)
    reference, x, same = (data.sample(200, generator(seed)) for seed in range(3))
    seen: list[str] = []
    result = out_of_distribution(
        model, data, x, {"same law": same, "far": 3 * same}, reference=reference,
        progress=lambda done, total, label: seen.append(f"{done}/{total} {label}"),
    )  # fmt: skip
    area = {(found.statistic, found.against): found.auroc for found in result.detections}
    assert len(area) == 14
    assert area["score norm", "far"].low > 0.95
    assert area["Stein residual, centred", "far"].low > 0.5
    for statistic in ("Stein residual", "score norm", "energy"):
        inside = area[statistic, "same law"]
        # Two samples of one law: ½ but for 4.5 standard errors of the rank statistic.
        assert abs(inside.value - 0.5) < 4.5 * (1 / (6 * 200)) ** 0.5
    assert seen == ["0/4 training data", "1/4 the data", "2/4 same law", "3/4 far"]
    assert result.numbers()["detections"][0]["n"] == 200


def test_a_function_has_to_be_wrapped() -> None:
    with pytest.raises(TypeError, match=r"torch.nn.Module.*taser.models.Wrapped"):
        ood_statistics(torch.sin, Gaussian(torch.zeros(5)), torch.zeros(2, 5))


def test_a_table_is_no_picture() -> None:
    with pytest.raises(ValueError, match="only images"):
        resized(torch.rand(5, 30), (1, 8, 8))
    with pytest.raises(ValueError, match="only images"):
        resized(torch.rand(5, 1, 8, 8), (30,))


def test_pictures_of_another_size_and_colour_are_fitted() -> None:
    x = torch.rand(2, 3, 32, 32, generator=generator())
    grey = resized(x, (1, 8, 8))
    assert grey.shape == (2, 1, 8, 8)
    assert float(grey.mean()) == pytest.approx(float(x.mean()), abs=0.01)
    assert torch.equal(resized(x, (3, 32, 32)), x)
    assert resized(grey, (3, 28, 28)).shape == (2, 3, 28, 28)
