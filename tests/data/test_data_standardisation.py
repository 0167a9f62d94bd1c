import pytest
import torch

from taser.data import Standardisation


def test_fitted_features_have_mean_zero_and_std_one() -> None:
    x = 1000 + torch.tensor([0.1, 1.0, 100.0]) * torch.randn(500, 3)
    u = Standardisation.fit(x).apply(x)
    torch.testing.assert_close(u.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(u.std(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)


def test_inverse_undoes_it() -> None:
    x = torch.randn(20, 4) * 7 + 3
    scale = Standardisation.fit(x)
    torch.testing.assert_close(scale.invert(scale.apply(x)), x)
    assert scale.apply(x).dtype == x.dtype


def test_constant_column_becomes_zero() -> None:
    x = torch.stack([torch.full((10,), 0.1), torch.arange(10.0)], 1)
    scale = Standardisation.fit(x)
    assert scale.std[0] == 1.0
    torch.testing.assert_close(scale.apply(x)[:, 0], torch.zeros(10), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [
        ((0.0,), (1.0, 1.0), "one mean and one std for each feature"),
        ((), (), "one mean and one std"),
        ((0.0,), (0.0,), "finite, and every std positive"),
        ((0.0,), (float("nan"),), "finite, and every std positive"),
        ((float("inf"),), (1.0,), "feature, finite"),
    ],
)
def test_bad_numbers_are_refused(mean: tuple, std: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Standardisation(mean, std)


def test_wrong_shapes_and_text_are_refused() -> None:
    scale = Standardisation((0.0, 0.0), (1.0, 2.0))
    with pytest.raises(ValueError, match=r"of 2 features.*got \(4, 3\)"):
        scale.apply(torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"vectors, \(N, d\)"):
        Standardisation.fit(torch.zeros(4))
