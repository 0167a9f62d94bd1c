"""TASER against the isotropic penalty, in a report's tables."""

from test_comparison import results_of, run

from taser.report._comparison_tables import penalty_table


def test_the_table_of_controls() -> None:
    runs = [run("off", 10), run("taser", 60), run("gradient", 40),
            run("off", 10, method="standard"), run("taser", 20, method="standard"),
            run("gradient", 50, method="standard")]  # fmt: skip
    table = penalty_table(results_of(runs))
    assert table is not None
    column = table.headings.index("Δ AA")
    gains = {row[0]: row[column] for row in table.rows}
    assert gains["PGD"].startswith("**+20.0 [")
    assert gains["Standard"].startswith("**-30.0 [")
    verdicts = {row[0]: row[-1] for row in table.rows}
    assert verdicts == {"PGD": "significant gain", "Standard": "significant loss"}


def test_several_seeds_add_an_interval_over_trainings() -> None:
    runs = [run(v, right + 2 * seed, seed=seed) for seed in (0, 1)
            for v, right in (("off", 10), ("taser", 60), ("gradient", 40))]  # fmt: skip
    table = penalty_table(results_of(runs))
    assert table is not None
    assert table.headings[-2] == "AA, other seeds"
    assert table.rows[0][-2].startswith("**[1")
    assert "Δ worst case" not in table.headings  # which is AutoAttack's but for a few


def test_the_headline_measure_is_compared() -> None:
    runs = [run("off", 10), run("taser", 30), run("gradient", 20)]
    for each in runs:
        attacks = each.evaluations[0].attacks
        attacks["apgd-ce"], attacks["apgd-t"] = attacks.pop("autoattack"), attacks.pop("spsa")
    table = penalty_table(results_of(runs))
    assert table is not None
    assert table.headings[-2] == "Δ worst case"


def test_taser_is_compared_with_every_other_penalty() -> None:
    runs = [run("off", 10), run("taser", 60), run("the paper's way", 50)]
    table = penalty_table(results_of(runs))
    assert table is not None
    assert [row[:2] for row in table.rows] == [["PGD", "the paper's way"]]
    assert table.rows[0][table.headings.index("Δ AA")].startswith("**+10.0 [")


def test_without_a_control_there_is_no_table() -> None:
    assert penalty_table(results_of([run("off", 10), run("taser", 60)])) is None


def test_attacks_of_other_names_are_compared_too() -> None:
    runs = [run("off", 10), run("taser", 30), run("gradient", 20)]
    for each in runs:
        attacks = each.evaluations[0].attacks
        attacks["pgd"] = attacks.pop("autoattack")
        del attacks["spsa"]
    table = penalty_table(results_of(runs))
    assert table is not None
    assert table.headings == ["method", "against", "Δ clean", "Δ pgd", "verdict"]
