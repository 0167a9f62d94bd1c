"""The toy regression's report, on made-up forecasts whose verdict is known."""

import math
from pathlib import Path

import numpy as np
import pytest

from taser.report import toy1d as report
from taser.report import toy1d_findings as findings
from taser.report.toy1d_figure import LIMIT, forecast_figure
from taser.studies.toy1d import Config, Fit, Method, Result, theory

CONFIG = Config(weights=(0.01, 0.1), seeds=(0, 1), half_widths=(4.0, 10.0), workers=1)


def made_up(levels: dict[Method, float]) -> Result:
    """Every network forecasts one number, its method's level, a little more for each seed."""
    x = np.arange(-100, 101) / 10
    fits = []
    for method, weight in CONFIG.rows:
        for seed in CONFIG.seeds:
            forecast = np.full_like(x, levels[method] + 0.01 * seed)
            errors = np.square(forecast - np.sin(x))
            wide = tuple(float(errors[np.abs(x) <= w + 1e-9].mean()) for w in CONFIG.half_widths)
            id_mse = theory(weight) if method == "taser" else 0.05
            fits.append(Fit(method, weight, seed, id_mse, wide, tuple(forecast.tolist())))
    return Result(CONFIG, tuple(fits), "2.0", 1.0)


@pytest.fixture(scope="module")
def result() -> Result:
    return made_up({"none": 1.0, "l2": 2.0, "taser": 0.1})


@pytest.fixture(scope="module")
def written(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(result, tmp_path_factory.mktemp("toy1d") / "out")


def test_every_file_is_written(result: Result, written: Path) -> None:
    assert written.name == "report.html"
    names = {file.name for file in written.parent.iterdir()}
    assert names == {"results.json", "table.md", "forecast.png", "report.html"}
    assert Result.from_json(written.with_name("results.json").read_text()) == result
    assert written.with_name("forecast.png").read_bytes().startswith(b"\x89PNG")
    assert written.with_name("table.md").read_text().count("|:--|") == 3


def test_the_page_stands_alone(written: Path) -> None:
    html = written.read_text()
    assert "http" not in html
    assert html.count("src=") == html.count('src="data:image/png;base64,') == 2
    assert "6.00e-02" in html  # the paper's ℓ2 at λ = 0.1


def test_the_comparison_counts_pairs(result: Result) -> None:
    seen = findings.compare(result, 10.0)
    assert (seen.pairs, seen.taser_below_l2, seen.taser_below_none) == (4, 4, 4)
    x = np.arange(-100, 101) / 10
    assert seen.zero == pytest.approx(np.square(np.sin(x)).mean())
    assert seen.none == pytest.approx(seen.zero + 1.005**2, rel=1e-3)


def test_the_sentences_follow_the_numbers(result: Result) -> None:
    good = " ".join(report.summary(result))
    assert "the smaller in 4 of 4 pairs" in good
    assert "the smaller at every λ on ±4, ±10; ℓ2 does as well or better on no grid" in good
    assert "within 10 % of theory at λ = 0.01, 0.1." in good
    assert "5 of 5 rows score worse" in good
    bad = " ".join(report.summary(made_up({"none": 0.1, "l2": 1.0, "taser": 2.0})))
    assert "the smaller in 0 of 4 pairs" in bad
    assert "ℓ2 does as well or better on ±4 at λ = 0.01, 0.1; ±10 at λ = 0.01, 0.1" in bad
    assert "as good as TASER with its best λ on ±4, ±10" in bad


def test_the_headline_is_the_grid_nearest_to_the_paper() -> None:
    zero = np.square(np.sin(np.arange(-100, 101) / 10)).mean()
    # On ±10 as in the paper without a regulariser, and halfway (in logs) between its two λ with.
    errors: dict[Method, float] = {
        "none": 1.267,
        "l2": math.sqrt(1.158 * 2.546),
        "taser": math.sqrt(1.336 * 0.540),
    }
    result = made_up({method: math.sqrt(mse - zero) for method, mse in errors.items()})
    expected = (math.log(2.546 / 1.158) + math.log(1.336 / 0.540)) / 5
    assert findings.paper_factor(result, 10.0) == pytest.approx(math.exp(expected), rel=0.02)
    assert findings.paper_factor(result, 4.0) > findings.paper_factor(result, 10.0)
    assert findings.headline(result) == 10.0


def test_the_tables_put_ours_beside_the_paper(result: Result) -> None:
    rows = {row[0]: row for row in report.id_table(result).rows}
    assert rows["0"][2:] == ("4.19e-05", "–", "–", "–")
    assert rows["0.1"][2] == "6.00e-02"
    assert rows["0.1"][4:] == ("1.84e-02", "2.04e-02")
    assert [row[4] for row in report.ood_table(result).rows] == ["–", "1.336", "0.540"]
    assert [row[0] for row in report.grid_table(result).rows] == ["±4", "±10"]


def test_rows_that_fit_alike_are_paired(result: Result) -> None:
    (sentence,) = findings.equal_fit(result)
    assert "TASER at λ = 0.1 (1.8e-02 in distribution)" in sentence
    assert "TASER at λ = 0.01" not in sentence  # 85 times better than any ℓ2 row


def test_the_forecast_has_a_line_for_each_weight(result: Result) -> None:
    for axes in forecast_figure(result).axes:
        labels = {line.get_label() for line in axes.get_lines()}
        assert labels == {"λ = 0", "λ = 0.01", "λ = 0.1", "sin x"}
        assert axes.get_ylim() == (-LIMIT, LIMIT)
