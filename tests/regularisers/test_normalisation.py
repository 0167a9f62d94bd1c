"""Inputs that the loop normalises: the same penalty as with the normalisation inside the model."""

import copy
import pickle
import warnings
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import taser
from taser.regularisers._taser import FormName
from taser.scores import DenoisingScore

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
THREAT = taser.Threat("linf", 8 / 255)


class Normalise(nn.Module):
    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__()
        self.mean, self.std = (torch.tensor(n).view(-1, 1, 1) for n in (mean, std))

    def forward(self, u: Tensor) -> Tensor:
        return (u - self.mean.to(u)) / self.std.to(u)


def network(channels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU(), nn.Flatten(),
        nn.Linear(6 * 16, 4),
    )  # fmt: skip


def batch(channels: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(12, channels, 4, 4, generator=generator), torch.arange(12) % 4


def score() -> DenoisingScore:
    return DenoisingScore(lambda x, _: 0.5 + 0.4 * torch.tanh(x - 0.5), 0.1)


def penalty_and_gradient(
    robust: taser.Taser, model: nn.Module, x: Tensor, y: Tensor, *, attached: bool
) -> tuple[Tensor, ...]:
    if attached:
        robust.attach(model)
        loss = nn.functional.cross_entropy(model(x), y)
    value = robust(model, x, y)
    total = value + loss if attached else value
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return value.detach(), torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("form", get_args(FormName))
def test_the_penalty_is_that_of_a_normalising_first_layer(form: FormName, attached: bool) -> None:
    u, y = (batch()[0].double(), batch()[1])
    options = {"threat": THREAT, "form": form, "fraction": 0.5, "seed": 3}
    inside = taser.Taser(score(), **options)  # type: ignore[arg-type]
    outside = taser.Taser(score(), normalisation=(MEAN, STD), **options)  # type: ignore[arg-type]
    first = Normalise(MEAN, STD)
    model = network().double()
    expected = penalty_and_gradient(inside, nn.Sequential(first, model), u, y, attached=attached)
    found = penalty_and_gradient(outside, model, first(u), y, attached=attached)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5 * float(two.abs().max()))
    plain = taser.Taser(score(), **options)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="normalisation="):
        without = plain(model, first(u), y)
    assert not torch.isclose(without, expected[0], rtol=0.1)


@pytest.mark.parametrize(
    ("normalisation", "channels"),
    [((0.1307, 0.3081), 1), (([0.1307], [0.3081]), 1), ((torch.tensor(MEAN), list(STD)), 3),
     ((0.5, STD), 3)],
)  # fmt: skip
def test_numbers_and_channels(normalisation: tuple, channels: int) -> None:
    u, y = batch(channels)
    mean, std = (torch.as_tensor(n).flatten().view(-1, 1, 1) for n in normalisation)
    model = network(channels)
    first = Normalise(mean.expand(channels, 1, 1).tolist(), std.expand(channels, 1, 1).tolist())
    expected = taser.Taser(score(), threat=THREAT)(nn.Sequential(first, model), u, y)
    robust = taser.Taser(score(), threat=THREAT, normalisation=normalisation)
    torch.testing.assert_close(robust(model, first(u), y), expected, rtol=1e-4, atol=0)


def test_rows_of_a_table_have_a_number_for_each_column() -> None:
    u, y = batch()[0].flatten(1), batch()[1]
    mean, std = u.mean(0), u.std(0)
    model = nn.Sequential(nn.Linear(48, 8), nn.SiLU(), nn.Linear(8, 4))
    threat = taser.Threat("linf", 0.05, low=None, high=None)
    robust = taser.Taser(score(), threat=threat, normalisation=(mean, std))
    found = robust(model, (u - mean) / std, y)
    inside = taser.models.Wrapped(lambda u: model((u - mean) / std), model)
    expected = taser.Taser(score(), threat=threat)(inside, u, y)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u: (u - 0.1307) / 0.3081, r"outside the range \[0, 1\].*normalisation=\(mean"),
        (lambda u: 255 * u, r"normalisation=\(0, 1 / 255\) for bytes"),
        (lambda u: 2 * u - 1, "from -0.978 to 0.998.*normalisation="),
        (lambda u: u.permute(0, 2, 3, 1), r"channels last.*x\.permute"),
    ],
)
@pytest.mark.parametrize("form", ["steepest", "paper"])
def test_other_coordinates_give_one_warning_at_the_line_of_the_user(
    form: FormName, change: Any, message: str
) -> None:
    u, y = batch(1)
    x = change(torch.nn.functional.interpolate(u, (8, 8)) if "last" in message else u)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    model(x)
    robust = taser.Taser(score(), threat=THREAT if form == "steepest" else None, form=form)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            robust(model, x, y)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=message):
        taser.Taser(score(), threat=THREAT)(model, x, y)


def test_inputs_of_the_right_range_give_none() -> None:
    """Filterwarnings = error. Bytes are right where they are normalised by 255."""
    u, y = batch()
    model = network()
    taser.Taser(score(), threat=THREAT)(model, u, y)
    taser.Taser(score(), threat=THREAT)(model, u + 0.005, y)
    taser.Taser(score(), threat=THREAT, normalisation=(0, 1 / 255))(model, 255 * u, y)
    taser.Taser(score(), threat=taser.Threat("linf", 8, 0, 255))(model, 255 * u, y)


@pytest.mark.parametrize(
    "wrong", [(0.5, 0.0), (0.5, -1.0), (float("nan"), 1.0), (0.5,), (0.5, 0.5, 0.5), ("a", "b")]
)
def test_numbers_that_are_none(wrong: tuple) -> None:
    with pytest.raises(ValueError, match=r"normalisation should be \(mean, std\)"):
        taser.Taser(score(), threat=THREAT, normalisation=wrong)


def test_channels_that_the_inputs_have_not() -> None:
    u, y = batch(1)
    robust = taser.Taser(score(), threat=THREAT, normalisation=(MEAN, STD))
    with pytest.raises(
        ValueError, match=r"3 channels, which does not match inputs of shape \(12, 1, 4, 4\)"
    ):
        robust(network(1), u, y)


def test_the_model_is_no_part_of_the_regulariser() -> None:
    u, y = batch()
    model, robust = network(), taser.Taser(score(), threat=THREAT, normalisation=(MEAN, STD))
    robust(model, (u - 0.5) / 0.5, y)
    assert not list(robust.parameters())
    assert not any("weight" in key for key in robust.state_dict())
    assert copy.deepcopy(robust).normalisation._model is None
    loaded = pickle.loads(pickle.dumps(robust.normalisation))
    assert loaded._model is None


def test_checks_are_made_once_and_name_the_models_own_layers() -> None:
    u, y = batch()
    x, robust = (
        (u - 0.5) / 0.5,
        taser.Taser(score(), threat=THREAT, normalisation=(0.5, 0.5), every=1),
    )
    model, rows = network(), []
    robust(model, x, y)
    model[0].register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    robust(model, x, y)
    assert rows == [12, 4, 8]  # statistics, direction and the two ends, nothing more
    noisy = nn.Sequential(nn.Identity(), taser.models.Wrapped(nn.functional.dropout), model)
    with pytest.raises(taser.stein.UnsupportedLayer, match="layer '1' draws random numbers"):
        robust(noisy, x, y)
