"""TASER against the isotropic penalty at the same allowed loss of clean accuracy."""

from pathlib import Path

import pytest
from test_comparison import results_of, run

import equal_clean
from taser.compare import RunResult

ROOT = Path(__file__).parents[2]


def cells(runs: list[RunResult]) -> list[list[str]]:
    """The lines of the table."""
    found = list(equal_clean.pairs(results_of(runs)))
    lines = equal_clean.table(found).splitlines()[2:] if found else []
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]


def duller(made: RunResult, wrong: int) -> RunResult:
    """The same run, with the last `wrong` of 100 examples wrong without an attack."""
    made.evaluations[0].clean[len(made.evaluations[0].clean) - wrong :] = False
    made.record["result"]["clean"] -= wrong / 100
    return made


def test_at_the_same_allowed_loss() -> None:
    """λ is chosen on the validation split and evaluated on the test examples."""
    runs = [run("off", 10), run("taser λ=0.1", 30), duller(run("taser λ=1", 70), 2),
            run("gradient λ=0.1", 20), duller(run("gradient λ=3", 90), 5)]  # fmt: skip
    lines = cells(runs)
    levels = {row[1]: row for row in lines}
    assert list(levels) == ["0.5 to 1", "2", "5 to 30"]  # as one, where they take the same
    assert levels["0.5 to 1"][2:8] == ["0.1", "100.0", "30.0", "0.1", "100.0", "20.0"]
    assert levels["2"][2:8] == ["1", "98.0", "70.0", "0.1", "100.0", "20.0"]
    assert levels["5 to 30"][2:8] == ["1", "98.0", "70.0", "3", "95.0", "90.0"]
    gains = [[cell.split(" ")[0] for cell in row[8:10]] for row in levels.values()]
    assert gains == [["+0.0", "**+10.0"], ["-2.0", "**+50.0"], ["+3.0", "**-20.0"]]
    assert [row[-1] for row in levels.values()] == [
        "significant gain", "significant gain", "significant loss"
    ]  # fmt: skip


def test_lambda_is_not_picked_by_the_test_examples() -> None:
    lucky = run("taser λ=1", 90)
    lucky.record["result"]["robust"] = 0.2
    runs = [run("off", 10), run("taser λ=0.1", 30), lucky, run("gradient λ=1", 20),
            run("gradient λ=3", 15)]  # fmt: skip
    lines = cells(runs)
    assert [row[2] for row in lines] == ["0.1"]


def test_a_loss_that_one_penalty_has_no_lambda_for_is_left_out() -> None:
    runs = [run("off", 10), run("taser λ=1", 30), duller(run("gradient λ=1", 20), 2)]
    lines = cells(runs)
    assert [row[1] for row in lines] == ["2 to 30"]


def test_seeds_that_some_lambda_lacks_are_left_out() -> None:
    """Otherwise columns and differences would belong to different runs."""
    runs = [run("off", 10), run("off", 10, seed=1), run("taser λ=1", 30),
            run("taser λ=1", 70, seed=1), run("gradient λ=1", 40)]  # fmt: skip
    lines = cells(runs)
    assert lines[0][4] == "30.0"
    assert lines[0][9].startswith("**-10.0")
    assert cells(runs[:4]) == []


def test_more_draws_for_one_penalty_are_not_compared() -> None:
    runs = [run("off", 10), run("taser λ=1", 30), run("gradient λ=1", 40), run("gradient λ=2", 50)]
    assert cells(runs) == []


def test_from_records_to_a_table(tmp_path: Path) -> None:
    equal_clean.main([str(ROOT / "results" / "curves-digits"), "--out", str(tmp_path)])
    recorded = (ROOT / "results" / "curves-digits" / "table.md").read_text()
    lines = (tmp_path / "table.md").read_text().splitlines()
    first = next(line for line in lines if line.startswith("| standard"))
    assert " | ".join(first.split(" | ")[1:8]) in recorded
    assert (tmp_path / "gains.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="equally many λ"):
        equal_clean.main([str(ROOT / "results" / "beyond"), "--out", str(tmp_path)])
