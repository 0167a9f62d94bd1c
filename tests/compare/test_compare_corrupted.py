"""Networks under corruptions, as a study counts them."""

import pytest
import torch
from test_comparison import results_of, run
from torch import Tensor, nn

from taser.compare import RunResult, rows
from taser.compare._diagnostics import corruption_accuracy
from taser.data import Split
from taser.evaluation import subset
from taser.evaluation._corruptions import CORRUPTIONS, shift
from taser.report._comparison_figures import draw_frontier
from taser.report._comparison_tables import corrupted_table


class Bright(nn.Module):
    """Class 1 where the mean is above a half: noise leaves that alone, brightness does not."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([0.5 - mean, mean - 0.5], 1)


@pytest.fixture
def test_part() -> Split:
    x = 0.3 + 0.4 * torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Split(x, (x.flatten(1).mean(1) > 0.5).long())


def test_counts_are_those_of_the_shift(test_part: Split) -> None:
    found = corruption_accuracy(Bright(), test_part, 30)
    assert found is not None
    index = subset(40, 30)
    whole = shift(Bright(), test_part.x[index], test_part.y[index])
    every = torch.cat(list(whole.correct.values()))
    assert found["of"] == len(every) == 5 * (len(CORRUPTIONS) - 1)  # saturation takes colours
    assert found["right"] == every.sum(0).tolist()
    noise = [whole.correct[c.name] for c in CORRUPTIONS if c.kind == "noise"]
    assert found["kinds"]["noise"] == pytest.approx(float(torch.cat(noise).float().mean()))
    assert found["kinds"]["noise"] > found["kinds"]["light"]
    assert set(found["kinds"]) == {"noise", "blur", "light", "digital"}


def test_tables_of_numbers_have_no_corruptions() -> None:
    rows_of_numbers = Split(torch.rand(10, 4), torch.arange(10) % 2)
    assert corruption_accuracy(nn.Linear(4, 2), rows_of_numbers, 5) is None


def corrupted(variant: str, right: list[int], seed: int = 0) -> RunResult:
    made = run(variant, 10, seed=seed, n=len(right))
    made.diagnostics["corrupted"] = {"of": 4, "right": right, "kinds": {"noise": 0.5, "blur": 0.25}}
    return made


def test_rows_pair_the_corruptions_of_an_example() -> None:
    """Every example's change is the same, so that drawing others changes nothing."""
    off, ours = rows(
        [corrupted("off", [1] * 50), corrupted("off", [2] * 50, seed=1),
         corrupted("taser", [2] * 50), corrupted("taser", [4] * 50, seed=1)],
        ["clean", "corrupted"],
    )  # fmt: skip
    assert off.accuracy["corrupted"].value == pytest.approx(3 / 8)
    assert ours.gain is not None
    assert ours.gain["corrupted"].low == pytest.approx(3 / 8)
    assert ours.gain["corrupted"].value == pytest.approx(3 / 8)
    assert ours.gain_range is not None
    assert ours.gain_range["corrupted"] == pytest.approx((0.25, 0.5))
    assert ours.n["corrupted"] == 50


def test_few_differences_are_judged_by_the_sign_test() -> None:
    """One example of fifty that stands one corruption more is no gain."""
    _, ours = rows(
        [corrupted("off", [1] * 50), corrupted("taser", [2] + [1] * 49)], ["corrupted"]
    )  # fmt: skip
    assert ours.gain is not None
    assert ours.gain["corrupted"].low < 0 < ours.gain["corrupted"].value


def test_the_table_tells_the_kinds_apart() -> None:
    made = [corrupted("off", [1] * 50), corrupted("taser", [2] * 50)]
    found = corrupted_table(results_of(made))
    assert found is not None
    assert found.headings == ["run", "mean", "Δ", "noise", "blur", "seeds"]
    assert found.rows[0] == ["PGD —", "25.0", "", "50.0", "25.0", "1"]
    assert found.rows[1][1:3] == ["50.0", "**+25.0 [25.0, 25.0]**"]
    assert len(found.rows) == 2
    assert corrupted_table(results_of([run("off", 1)])) is None


def test_the_frontier_has_a_panel_for_corruptions() -> None:
    made = [
        corrupted("off", [1, 2]),
        corrupted("taser λ=1", [2, 2]),
        corrupted("taser λ=3", [3, 2]),
    ]
    figure = draw_frontier(rows(made, ["clean", "corrupted", "autoattack"]))
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "accuracy under AA, %", "accuracy under corruptions, %"
    ]  # fmt: skip
