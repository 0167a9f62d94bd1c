"""TASER against the isotropic penalty, in a report's tables."""

from test_comparison import results_of, run

from taser.compare import RunResult
from taser.report._comparison_tables import equal_clean_table, penalty_table
from taser.report._page import Table


def control_tables(runs: list[RunResult]) -> list[Table]:
    """What there is of the two tables."""
    results = results_of(runs)
    return [t for t in (penalty_table(results), equal_clean_table(results)) if t is not None]


def duller(made: RunResult, wrong: int) -> RunResult:
    """The same run, with the last `wrong` of 100 examples wrong without an attack."""
    made.evaluations[0].clean[len(made.evaluations[0].clean) - wrong :] = False
    made.validation["clean"] -= wrong / 100
    return made


def test_as_tuned() -> None:
    runs = [run("off", 10), run("taser", 60), run("gradient", 40),
            run("off", 10, method="standard"), run("taser", 20, method="standard"),
            run("gradient", 50, method="standard")]  # fmt: skip
    (table,) = control_tables(runs)
    column = table.headings.index("Δ AA")
    gains = {row[0]: row[column] for row in table.rows}
    assert gains["PGD"].startswith("**+20.0 [")
    assert gains["Standard"].startswith("**-30.0 [")
    verdicts = {row[0]: row[-1] for row in table.rows}
    assert verdicts == {"PGD": "significant gain", "Standard": "significant loss"}


def test_with_several_seeds_the_interval_of_others_is_beside_it() -> None:
    runs = [run(v, right + 2 * seed, seed=seed) for seed in (0, 1)
            for v, right in (("off", 10), ("taser", 60), ("gradient", 40))]  # fmt: skip
    (table,) = control_tables(runs)
    assert table.headings[-2] == "AA, other seeds"
    assert table.rows[0][-2].startswith("**[1")
    assert "Δ worst case" not in table.headings  # which is AutoAttack's but for a few


def test_the_worst_case_is_compared_where_it_is_what_counts() -> None:
    runs = [run("off", 10), run("taser", 30), run("gradient", 20)]
    for each in runs:
        attacks = each.evaluations[0].attacks
        attacks["apgd-ce"], attacks["apgd-t"] = attacks.pop("autoattack"), attacks.pop("spsa")
    (table,) = control_tables(runs)
    assert table.headings[-2] == "Δ worst case"


def test_every_other_penalty_is_compared_with() -> None:
    runs = [run("off", 10), run("taser", 60), run("the paper's way", 50)]
    (table,) = control_tables(runs)
    assert [row[:2] for row in table.rows] == [["PGD", "the paper's way"]]
    assert table.rows[0][table.headings.index("Δ AA")].startswith("**+10.0 [")


def test_without_a_control_nothing_is_said() -> None:
    assert control_tables([run("off", 10), run("taser", 60)]) == []


def test_at_the_same_allowed_loss() -> None:
    """λ is taken by the validation split, and judged on the test examples."""
    runs = [run("off", 10), run("taser λ=0.1", 30), duller(run("taser λ=1", 70), 2),
            run("gradient λ=0.1", 20), duller(run("gradient λ=3", 90), 5)]  # fmt: skip
    (table,) = control_tables(runs)
    levels = {row[1]: row for row in table.rows}
    assert list(levels) == ["0.5 to 1", "2", "5 to 30"]  # as one, where they take the same
    assert levels["0.5 to 1"][2:8] == ["0.1", "100.0", "30.0", "0.1", "100.0", "20.0"]
    assert levels["2"][2:8] == ["1", "98.0", "70.0", "0.1", "100.0", "20.0"]
    assert levels["5 to 30"][2:8] == ["1", "98.0", "70.0", "3", "95.0", "90.0"]
    assert table.headings[8:] == ["Δ clean", "Δ AA", "verdict"]
    gains = [[cell.split(" ")[0] for cell in row[8:10]] for row in levels.values()]
    assert gains == [["+0.0", "**+10.0"], ["-2.0", "**+50.0"], ["+3.0", "**-20.0"]]
    assert [row[-1] for row in levels.values()] == [
        "significant gain", "significant gain", "significant loss"
    ]  # fmt: skip


def test_lambda_is_not_picked_by_the_test_examples() -> None:
    lucky = run("taser λ=1", 90)
    lucky.validation = {"clean": 1.0, "robust": 0.2}
    runs = [run("off", 10), run("taser λ=0.1", 30), lucky, run("gradient λ=1", 20),
            run("gradient λ=3", 15)]  # fmt: skip
    (table,) = control_tables(runs)
    assert [row[2] for row in table.rows] == ["0.1"]


def test_a_loss_that_one_penalty_has_no_lambda_for_is_left_out() -> None:
    runs = [run("off", 10), run("taser λ=1", 30), duller(run("gradient λ=1", 20), 2)]
    (table,) = control_tables(runs)
    assert [row[1] for row in table.rows] == ["2 to 30"]


def test_seeds_that_some_lambda_lacks_are_left_out() -> None:
    """Or columns and differences would be of different runs."""
    runs = [run("off", 10), run("off", 10, seed=1), run("taser λ=1", 30),
            run("taser λ=1", 70, seed=1), run("gradient λ=1", 40)]  # fmt: skip
    (table,) = control_tables(runs)
    assert table.rows[0][4] == "30.0"
    assert table.rows[0][9].startswith("**-10.0")
    assert control_tables(runs[:4]) == []


def test_more_draws_for_one_penalty_are_not_compared() -> None:
    runs = [run("off", 10), run("taser λ=1", 30), run("gradient λ=1", 40), run("gradient λ=2", 50)]
    assert control_tables(runs) == []


def test_attacks_of_other_names_are_compared_too() -> None:
    runs = [run("off", 10), run("taser", 30), run("gradient", 20)]
    for each in runs:
        attacks = each.evaluations[0].attacks
        attacks["pgd"] = attacks.pop("autoattack")
        del attacks["spsa"]
    (table,) = control_tables(runs)
    assert table.headings == ["method", "against", "Δ clean", "Δ pgd", "verdict"]


def test_corruptions_are_compared_too() -> None:
    """Of the λ that were taken for attacks."""
    made = [run("off", 10), run("taser λ=0.1", 30), run("taser λ=1", 20), run("gradient λ=1", 25),
            run("gradient λ=3", 15)]  # fmt: skip
    for each, right in zip(made, (10, 50, 30, 40, 20), strict=True):
        each.diagnostics["corrupted"] = {"of": 70, "right": [right] * 100, "kinds": {}}
    (table,) = control_tables(made)
    assert table.rows[0][2:8] == ["0.1", "100.0", "30.0", "1", "100.0", "25.0"]
    assert table.headings[-2] == "Δ corrupted"
    assert table.rows[0][-2].startswith("**+14.3 [")
