"""A score network in bfloat16: as good as the score, where the hardware has it, and no other."""

import pytest
import torch
from torch import Tensor, nn

from taser.data import load
from taser.scores import DenoisingScore, from_edm, pretrained
from taser.scores import _score as denoising
from taser.training import read_recipe
from taser.training._build import build_score


class Halved(nn.Module):
    """D(x) = x/2, with a weight whose type decides in which it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.5 * torch.eye(3))

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        return x @ self.weight


def halves(score: DenoisingScore) -> bool:
    """Whether its network computes in bfloat16."""
    seen = []
    score.denoise = lambda x, _: seen.append(torch.mm(x, x).dtype) or x  # type: ignore[func-returns-value]
    assert score(torch.ones(2, 2)).dtype == torch.float32
    return seen == [torch.bfloat16]


def test_the_score_is_that_of_float32_to_the_rounding_of_its_layers() -> None:
    """Inputs and weights of some fifteen convolutions are rounded by 2⁻⁹, independently."""
    x = load("digits").test.x[:64]
    score = pretrained("digits").at(timestep=50)
    exact = score.paired(x, torch.Generator().manual_seed(0))
    score.precision = "bfloat16"
    rounded = score.paired(x, torch.Generator().manual_seed(0))
    assert rounded.dtype == torch.float32
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 30**0.5 * 2**-9


@pytest.mark.parametrize("fast", [True, False])
def test_auto_depends_on_the_hardware(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising, "has_bfloat16", lambda _: fast)
    identity = lambda x, _: x  # noqa: E731
    assert halves(DenoisingScore(identity, 0.1, precision="auto")) == fast
    assert halves(DenoisingScore(identity, 0.1, precision="bfloat16"))
    assert not halves(DenoisingScore(identity, 0.1))
    assert halves(DenoisingScore(identity, 0.1, precision="auto").at(sigma=0.2)) == fast


@pytest.mark.parametrize("own", [torch.bfloat16, torch.float64])
def test_a_network_of_another_type_gets_inputs_of_its_own(own: torch.dtype) -> None:
    """A diffusion model that was loaded in half precision, say."""
    score = from_edm(Halved().to(own), 0.1, coordinates="[0,1]")
    x = torch.rand(4, 3)
    assert score(x).dtype == torch.float32
    torch.testing.assert_close(score(x), -0.5 * x / 0.1**2, rtol=2**-7, atol=0)


def test_the_callers_autocast_does_not_reach_it() -> None:
    x = load("digits").test.x[:8]
    score = pretrained("digits").at(timestep=50)
    with torch.autocast("cpu", torch.bfloat16):
        inside = score(x)
    assert torch.equal(inside, score(x))


def test_a_recipe_says_so_or_leaves_the_score_as_it_is() -> None:
    digits = load("digits")
    taken = []
    for override in ([], ["regulariser.precision=auto"]):
        score = build_score(read_recipe("digits/pgd", override).regulariser, digits)
        assert isinstance(score, DenoisingScore)
        taken.append(score.precision)
    assert taken == ["float32", "auto"]
    assert read_recipe("cifar10/pgd", []).regulariser.precision == "auto"


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision should be one of"):
        DenoisingScore(lambda x, _: x, 0.1, precision="float16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"regulariser\.precision"):
        read_recipe("digits/pgd", ["regulariser.precision=float16"])
