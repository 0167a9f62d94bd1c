"""README and docs quote no interval that is not in the records, which give the tables again."""

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, norm

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLES = [*RESULTS.rglob("table.md"), *(ROOT / "benchmarks/results").glob("*.md")]
RECORDS = sorted(RESULTS.rglob("records.jsonl.xz"))
STUDIES = [path for path in RECORDS if '"rows"' in path.with_name("figures.json").read_text()]
WITHOUT_VERDICTS = ("certified", "short-runs", "toy1d")
IGNORED = ("report.html", "table.tex")  # by .gitignore
INTERVAL = re.compile(r"[+-]?\d+\.\d+ \[-?\d+\.\d+, -?\d+\.\d+\]")

Key = tuple[str, str, bool]  # method, variant, whether fine-tuned
Answers = dict[str, np.ndarray]  # by measure: (n,) shares of right answers to each example


def intervals(text: str) -> set[str]:
    """Those such as +7.2 [3.3, 11.1], with one kind of minus, a plus left out and lines joined."""
    plain = re.sub(r"\s+", " ", text.replace("−", "-"))
    return {found.removeprefix("+") for found in INTERVAL.findall(plain)}


@pytest.fixture(scope="module")
def recorded() -> set[str]:
    return intervals("\n".join(path.read_text() for path in TABLES))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_intervals_are_recorded(page: Path, recorded: set[str]) -> None:
    assert intervals(page.read_text()) <= recorded


def test_a_figure_that_was_not_measured_is_noticed(recorded: set[str]) -> None:
    assert intervals("gains **+7.2\n[3.3, 11.1]**") == {"7.2 [3.3, 11.1]"}
    assert not intervals("gains −7.3 [−11.1, −3.3]") <= recorded


def test_results_are_small() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file() and path.name not in IGNORED]
    assert len(files) < 120
    assert sum(path.stat().st_size for path in files) < 10_000_000


def test_folders_have_the_layout_that_the_readme_describes() -> None:
    folders = [path for path in RESULTS.iterdir() if path.is_dir()]
    for folder in folders:
        names = {path.name for path in folder.iterdir() if path.suffix != ".png"} - {*IGNORED}
        assert {"table.md", "figures.json"} <= names, folder.name
        assert names <= {"table.md", "figures.json", "records.jsonl.xz"}, folder.name
    listed = re.findall(r"^\| `([\w-]+)/`", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(folder.name for folder in folders)


@cache
def records(path: Path) -> list[dict[str, Any]]:
    """One dictionary a run."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def verdicts(text: str) -> np.ndarray:
    """(n,) bool from a string of 0 and 1."""
    assert set(text) <= {"0", "1"}
    return np.frombuffer(text.encode(), "u1") == ord("1")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_every_evaluation_follows_from_its_verdicts(path: Path) -> None:
    runs = records(path)
    assert len({run["run"] for run in runs}) == len(runs)
    evaluations = [each for run in runs for each in run.get("evaluations", [])]
    assert evaluations or path.parent.name in WITHOUT_VERDICTS
    for each in evaluations:
        clean = verdicts(each["clean"])
        assert len(clean) == len(each["index"]) == len(each["y"]) == each["n"]
        assert clean.mean() == pytest.approx(each["clean_accuracy"])
        worst = clean.copy()
        for attack in each["attacks"].values():
            assert verdicts(attack["correct"]).mean() == pytest.approx(attack["accuracy"])
            worst &= verdicts(attack["correct"])
        assert worst.mean() == pytest.approx(each["robust_accuracy"])


def measured(run: dict[str, Any]) -> Answers:
    """The verdicts by clean, corrupted, each attack and worst."""
    first = run["evaluations"][0]
    found = {"clean": verdicts(first["clean"])}
    worst = found["clean"].copy()
    for each in run["evaluations"]:  # the others are on some of the first one's examples
        rows = np.searchsorted(first["index"], each["index"])
        for name, attack in each["attacks"].items():
            found[name] = verdicts(attack["correct"])
            worst[rows] &= found[name]
    corrupted = run["diagnostics"].get("corrupted")
    if corrupted:
        found["corrupted"] = np.array(corrupted["right"]) / corrupted["of"]
    return found | {"worst": worst}


def by_method(path: Path) -> dict[Key, dict[int, Answers]]:
    """What each seed answered, without runs of a search and those under another threat."""
    groups: dict[Key, dict[int, Answers]] = {}
    for run in records(path):
        if "diagnostics" in run:
            result = run["result"]
            key = result["method"], result["variant"], result["finetuned"]
            groups.setdefault(key, {})[result["seed"]] = measured(run)
    return groups


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_figures_follow_from_the_verdicts(path: Path) -> None:
    groups = by_method(path)
    rows = json.loads(path.with_name("figures.json").read_text())["rows"]
    assert {(row["method"], row["variant"], row["finetuned"]) for row in rows} == set(groups)
    for row in rows:
        own = groups[row["method"], row["variant"], row["finetuned"]]
        alone = groups.get((row["method"], "off", row["finetuned"]), {})
        both = [seed for seed in own if seed in alone]
        assert row["seeds"] == len(own)
        for measure, accuracy in row["accuracy"].items():
            seeds = np.stack([answers[measure] for answers in own.values()])  # (seeds, n)
            assert row["n"][measure] == seeds.shape[1]
            assert seeds.mean() == pytest.approx(accuracy["value"])
            if row["gain"] is not None and both:
                gains = [own[seed][measure].mean() - alone[seed][measure].mean() for seed in both]
                assert np.mean(gains) == pytest.approx(row["gain"][measure]["value"])


@pytest.mark.parametrize("path", sorted(RESULTS.glob("certified/records.jsonl.xz")))
def test_certificates_follow_from_their_counts(path: Path) -> None:
    """Each radius by scipy, and each certified accuracy of the table, from count and draws."""
    figures = json.loads(path.with_name("figures.json").read_text())
    shares: dict[tuple[str, str, str], list[list[float]]] = {}
    for run in records(path):
        levels = dict(run["looks"])
        assert sum(levels.values()) == pytest.approx(run["alpha"])
        count, drawn = np.array(run["count"]), np.array(run["drawn"])
        level = np.array([levels[draws] for draws in run["drawn"]])
        low = beta.ppf(level, np.maximum(count, 1), drawn - np.maximum(count, 1) + 1)
        low[count == 0] = 0
        radius = np.where(low > 0.5, run["sigma"] * norm.ppf(np.maximum(low, 0.5)), 0)
        assert radius == pytest.approx(np.array(run["radius"]), abs=1e-9)
        right = np.array(run["prediction"]) == np.array(run["y"])
        radii = [0.0, *run["radii"]]
        found = [float((right & (radius >= wanted)).mean()) for wanted in radii]
        left = [float(np.mean(run["attacked"][str(wanted)])) for wanted in radii]
        assert np.all(np.array(left) >= found)  # the bound from above
        shares.setdefault((run["dataset"], f"{run['sigma']:g}", run["row"]), []).append(found)
    for (data, sigma, row), seeds in shares.items():
        entry = figures[data][sigma]["classifiers"][row]["certified"]
        assert np.mean(seeds, 0) == pytest.approx(np.array(entry)[:, 0])


def test_the_table_shows_the_figures() -> None:
    table = (RESULTS / "digits/table.md").read_text()
    key = ("standard", "taser", False)
    seeds = by_method(RESULTS / "digits/records.jsonl.xz")[key].values()
    clean, robust = (
        100 * np.mean([answers[name].mean() for answers in seeds])
        for name in ("clean", "autoattack")
    )
    cells = next(line for line in table.splitlines() if line.startswith("| Standard | + TASER"))
    assert {f"{clean:.1f}", f"{robust:.1f}"} <= set(cells.split())


def test_the_example_of_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    block = re.search(r"```python\n(.*?)```", (RESULTS / "README.md").read_text(), re.DOTALL)
    assert block
    monkeypatch.chdir(ROOT)
    exec(compile(block[1], "results/README.md", "exec"), {})
    shown = [float(number) for number in re.findall(r"\d+\.\d", capsys.readouterr().out)]
    rows = json.loads((RESULTS / "digits/figures.json").read_text())["rows"]
    row = next(row for row in rows if (row["method"], row["variant"]) == ("pgd", "taser"))
    wanted = [100 * row["accuracy"]["autoattack"][name] for name in ("value", "low", "high")]
    # two bootstraps of 10,000 draws: the ends scatter by about 0.05 points
    assert shown == pytest.approx(wanted, abs=0.4)
