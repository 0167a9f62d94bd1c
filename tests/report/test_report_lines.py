"""Figures with few variants and with many."""

from taser.report._method_figures import training_figure
from taser.report._method_tables import MOST_NAMED, colour, kind, looks

LOG = [
    {"kind": "validation", "epoch": 1.0, "clean": 0.5, "robust": 0.1},
    {"kind": "validation", "epoch": 2.0, "clean": 0.7, "robust": 0.3, "taken": True},
]


def test_variants_of_a_kind_have_its_colour() -> None:
    assert kind("taser λ=0.1") == kind("TASER as it is") == kind("taser") == "taser"
    assert kind("the paper's way") == "other"
    assert colour("gradient λ=1") == colour("gradient") != colour("taser")


def test_a_legend_of_many_variants_names_kinds() -> None:
    many = ["off", "TASER as it is", *(f"t = {i}" for i in range(MOST_NAMED))]
    look = looks(many)
    named = [entry["label"] for entry in look.values() if entry["label"] != "_"]
    assert named == ["method alone", "TASER", "others"]
    assert look["t = 0"]["alpha"] < 1
    figure = training_figure({"Standard": dict.fromkeys(many, LOG)})
    (axes,), (legend,) = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == named
    assert len(axes.lines) == 2 * len(many)


def test_few_variants_are_named_one_by_one() -> None:
    assert [entry["label"] for entry in looks(["off", "taser", "t = 10"]).values()] == [
        "method alone", "+ TASER", "t = 10"
    ]  # fmt: skip
