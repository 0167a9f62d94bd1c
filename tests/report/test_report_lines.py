"""Figures with few variants and with many."""

from taser.report._comparison_report import MOST_NAMED, draw_training, kind, line_styles

LOG = [
    {"step": 1, "epoch": 1.0, "clean": 0.5, "robust": 0.1},
    {"step": 2, "epoch": 2.0, "clean": 0.7, "robust": 0.3},
]


def test_variants_of_a_kind_have_its_colour() -> None:
    assert kind("taser λ=0.1") == kind("TASER as it is") == kind("taser") == "taser"
    assert kind("the paper's way") == "other"
    assert kind("gradient λ=1") == kind("gradient") != kind("taser")


def test_a_legend_of_many_variants_names_kinds() -> None:
    many = ["off", "TASER as it is", *(f"t = {i}" for i in range(MOST_NAMED))]
    look = line_styles(many)
    named = [entry["label"] for entry in look.values() if entry["label"] != "_"]
    assert named == ["method alone", "TASER", "others"]
    assert look["t = 0"]["alpha"] < 1
    figure = draw_training({"Standard": dict.fromkeys(many, (LOG, 2))})
    (axes,), (legend,) = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == named
    assert len(axes.lines) == 2 * len(many)


def test_few_variants_are_named_one_by_one() -> None:
    assert [entry["label"] for entry in line_styles(["off", "taser", "t = 10"]).values()] == [
        "method alone", "+ TASER", "t = 10"
    ]  # fmt: skip
