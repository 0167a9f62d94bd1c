"""Diagnostics of a comparison: corruptions, and the script from weights or records to tables."""

from pathlib import Path

import pytest
import torch
from test_comparison import finished, results_of, run
from torch import Tensor, nn

import diagnostics
from diagnostics import KINDS, by_row, corrupted_table, corruption_accuracy
from taser.compare import ComparisonConfig, RunResult, read_results
from taser.data import Split
from taser.evaluation import subset
from taser.evaluation._corruptions import CORRUPTIONS, shift

ROOT = Path(__file__).parents[2]


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
    assert sorted(c.name for c in CORRUPTIONS) == sorted(
        n for names in KINDS.values() for n in names
    )
    noise = [whole.correct[name] for name in KINDS["noise"]]
    assert found["kinds"]["noise"] == pytest.approx(float(torch.cat(noise).float().mean()))
    assert found["kinds"]["noise"] > found["kinds"]["light"]
    assert set(found["kinds"]) == {"noise", "blur", "light", "digital"}


def test_tables_of_numbers_have_no_corruptions() -> None:
    rows_of_numbers = Split(torch.rand(10, 4), torch.arange(10) % 2)
    assert corruption_accuracy(nn.Linear(4, 2), rows_of_numbers, 5) is None


def corrupted(variant: str, right: list[int], seed: int = 0) -> RunResult:
    made = run(variant, 10, seed=seed, n=len(right))
    kinds = dict(zip(KINDS, (0.5, 0.25, 0.75, 1.0), strict=True))
    made.diagnostics |= {
        "sensitivity": {"gradient": 2.0, "off_data": None, "linear": 0.5},
        "curve": {"epsilons": [0, 0.03], "accuracies": [1, 0.5]},
        "corrupted": {"of": 4, "right": right, "kinds": kinds},
    }
    return made


def test_the_corruptions_of_an_example_are_paired_and_reported_by_kind() -> None:
    runs = [corrupted("off", [1] * 50), corrupted("off", [2] * 50, seed=1),
            corrupted("taser", [2] * 50), corrupted("taser", [4] * 50, seed=1)]  # fmt: skip
    found = corrupted_table(by_row(results_of(runs)))
    assert found is not None
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines()]
    assert lines[0] == ["run", "mean", "Δ", *KINDS, "seeds"]
    assert lines[2] == ["pgd off", "37.5", "", "50.0", "25.0", "75.0", "100.0", "2"]
    assert lines[3][:3] == ["pgd taser", "75.0", "**+37.5 [28.6, 46.3]**"]
    assert corrupted_table(by_row(results_of([run("off", 1)]))) is None


def test_few_differences_use_the_sign_test() -> None:
    """One example of fifty with one correct corruption more is no gain."""
    runs = [corrupted("off", [1] * 50), corrupted("taser", [2] + [1] * 49)]
    assert "| pgd taser | 25.5 | +0.5 [-" in str(corrupted_table(by_row(results_of(runs))))


def test_records_and_networks_are_measured_alike(tmp_path: Path) -> None:
    """Older records already hold these diagnostics."""
    config = ComparisonConfig(
        methods=("standard",), n=20, epsilon=0.1, attacks=("fgsm",), variants={"off": []},
        overrides=["loop.epochs=1", "data.examples=100", "validation.steps=1", "model.width=4"],
    )  # fmt: skip
    finished(config, tmp_path)
    diagnostics.main([str(tmp_path)])
    text = (tmp_path / "diagnostics" / "table.md").read_text()
    assert "| standard off |" in text
    assert "Accuracy under corruptions" in text
    kept = ROOT / "results" / "digits"  # whose table has the diagnostics of its time at its end
    diagnostics.main([str(kept), "--out", str(tmp_path / "kept")])
    assert {p.name for p in (tmp_path / "kept").iterdir()} == {
        "table.md", "figures.json", "residuals.png"
    }  # fmt: skip
    recorded = (kept / "table.md").read_text()
    own = [line for line in (tmp_path / "kept" / "table.md").read_text().splitlines()
           if line.startswith("| pgd off |")]  # fmt: skip
    assert [line.replace("pgd off", "PGD —") in recorded for line in own] == [True] * 3
    assert read_results(kept).runs
