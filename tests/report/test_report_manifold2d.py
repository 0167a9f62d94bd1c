"""The manifold report: its files, and sentences that follow the numbers."""

import json
import re
from dataclasses import replace

import pytest

from taser.report import manifold2d as report
from taser.report import manifold2d_findings as findings
from taser.studies import manifold2d
from taser.studies.manifold2d import ON_CURVE, PLAIN, Config
from taser.studies.sensitivity import Sensitivity


@pytest.fixture(scope="module")
def result():
    """A tiny run for the maps, with made-up measurements in place of its own."""
    config = Config(seeds=(0, 1), strengths=(0.01, 0.1), examples=64, steps=3, batch=16, width=8)
    return with_shares(manifold2d.run(config), isotropic=0.4, taser=0.1)


def with_shares(result, *, isotropic, taser):
    """The result as if normal over tangential sensitivity were `isotropic` and `taser`."""
    shares = {
        PLAIN: 1.0,
        "isotropic": isotropic,
        "first-order": taser,
        "taser": taser,
        ON_CURVE: 0.9,
    }

    def measured(run):
        tangent = 20.0 if run.method == PLAIN else 0.1 / run.strength
        return Sensitivity(tangent, shares[run.method] * tangent, 0.95, 0.9, 0.8)

    return replace(result, runs=tuple(replace(run, measured=measured(run)) for run in result.runs))


def test_every_file_is_written_and_the_page_needs_no_network(result, tmp_path):
    path = report.write(result, tmp_path / "new")
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"results.json", "table.md", "geometry.png", "report.html"}
    assert path.name == "report.html"
    assert (path.parent / "geometry.png").read_bytes().startswith(b"\x89PNG")
    html = path.read_text()
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"base64,[^\"]*", "", html))
    assert html.index("Does TASER") < html.index("What was done")
    numbers = json.loads((path.parent / "results.json").read_text())
    assert len(numbers["runs"]) == len(result.runs)
    assert "| TASER, first order |" in (path.parent / "table.md").read_text()


@pytest.mark.parametrize(
    ("isotropic", "taser", "answer"),
    [(0.4, 0.1, "Yes"), (0.1, 0.4, "No"), (0.2, 0.2, "Not always")],
)
def test_the_verdict_follows_the_numbers(result, isotropic, taser, answer):
    text = findings.verdict(with_shares(result, isotropic=isotropic, taser=taser))
    assert f"? {answer}, in this plane" in text
    assert f"leaves {isotropic / taser:.2g} times" in text


def test_no_common_level_is_said_and_does_not_fail(result):
    apart = replace(
        result,
        runs=tuple(
            replace(run, measured=replace(run.measured, tangent=100 + run.seed))
            if run.method == "taser"
            else run
            for run in result.runs
        ),
    )
    assert apart.levels("tangent") == []
    assert "cannot tell" in findings.verdict(apart)
    assert "in common" in findings.laplacian(apart)
    assert report.matched_table(apart).rows == []
    assert len(report.draw(apart).subfigs) == 2


def test_the_control_follows_the_numbers(result):
    assert "nearly zero" in findings.where(result)
    same = tuple(
        replace(run, measured=replace(run.measured, normal=0.1 * run.measured.tangent))
        for run in result.runs
    )
    assert "no great difference" in findings.where(replace(result, runs=same))


def test_a_price_in_clean_accuracy_is_said(result):
    assert "None was" not in findings.at_no_price(result)
    poorer = tuple(
        replace(run, measured=replace(run.measured, accuracy=0.8)) if run.method == "taser" else run
        for run in result.runs
    )
    assert "None was that cheap for TASER" in findings.at_no_price(replace(result, runs=poorer))
