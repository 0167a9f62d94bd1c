"""The figure of training: what is drawn of a log."""

from taser.report._comparison_report import draw_training


def test_a_dot_where_the_weights_come_from() -> None:
    lines = [
        {"step": 5, "epoch": 1.0, "clean": 0.4, "robust": 0.1},
        {"step": 10, "epoch": 2.0, "clean": 0.5, "robust": 0.3},
        {"step": 15, "epoch": 3.0, "clean": 0.6, "robust": 0.2},
    ]
    (axes,) = draw_training({"PGD": {"off": (lines, 10)}}).axes
    robust, clean = axes.get_lines()
    assert list(robust.get_ydata()) == [10, 30, 20]
    assert list(clean.get_ydata()) == [40, 50, 60]
    assert robust.get_markevery() == clean.get_markevery() == [1]
