"""The table of methods: its jobs, its rows, and one small table from command to report."""

import json
from pathlib import Path

import pytest
import torch

from taser.attacks import Threat
from taser.evaluation import Evaluation
from taser.evaluation.provenance import Provenance
from taser.evaluation.verdicts import Verdicts
from taser.report import method_study
from taser.report.method_findings import summary
from taser.report.method_table import PAPER, latex, main_table, paper_table
from taser.studies.queue import Queue
from taser.studies.table import RunResult, do
from taser.studies.table_config import TableConfig, read_table_config
from taser.studies.table_rows import rows


def run(variant: str, right: int, *, seed: int = 0, n: int = 100, method: str = "pgd") -> RunResult:
    """A run in which every example is right when clean, and the first `right` under attack."""
    standing = torch.arange(n) < right
    attack = Verdicts(standing, torch.zeros(n), torch.full((n,), -1), ("one",))
    record = Evaluation(
        Threat(), torch.arange(n), torch.zeros(n, dtype=torch.int64),
        torch.ones(n, dtype=torch.bool), {"autoattack": attack, "spsa": attack}, (),
        Provenance(0, 1, "", "", {}, {}),
    )  # fmt: skip
    seconds = {"off": 0.001, "taser": 0.002}.get(variant, 0.0015)
    return RunResult({
        "method": method, "variant": variant, "seed": seed, "finetuned": False,
        "seconds_per_example": seconds, "record": json.loads(record.to_json()),
    })  # fmt: skip


def test_rows_pool_seeds_and_pair_examples() -> None:
    runs = [run("off", 40), run("off", 44, seed=1), run("taser", 60), run("taser", 64, seed=1)]
    off, ours = rows(runs, ["clean", "autoattack", "worst"])
    assert off.gain is None
    assert ours.gain is not None
    assert ours.n == 200
    assert ours.accuracy["autoattack"].value == pytest.approx(0.62)
    assert ours.gain["autoattack"].value == pytest.approx(0.2)
    assert ours.supported("autoattack")
    assert not ours.supported("clean")
    assert ours.overhead == pytest.approx(2.0)
    assert ours.average == pytest.approx(0.62)


def test_only_what_the_interval_supports_is_bold() -> None:
    table = main_table(rows([run("off", 40), run("taser", 60)], ["clean", "autoattack"]))
    assert "**+20.0" in table.rows[1][5]
    same = main_table(rows([run("off", 40), run("taser", 41)], ["clean", "autoattack"]))
    assert "**" not in same.rows[1][5]
    assert r"\textbf{+20.0" in latex(table)


def test_the_summary_names_gain_cost_and_control() -> None:
    found = rows([run("off", 40), run("taser", 60), run("gradient", 70)], ["clean", "autoattack"])
    lines = summary(found)
    assert "1 of 1" in lines[0]
    assert "raised" in lines[1]
    assert "isotropic penalty +30.0" in lines[1]
    lower = summary(rows([run("off", 40), run("taser", 20)], ["clean", "autoattack"]))
    assert "lowered" in lower[1]


def test_the_papers_figures_are_its_own() -> None:
    """Averages as printed in Table 2, but for MART + AWP with TASER, where the paper slips."""
    printed = {
        "standard": (3.0, 19.25), "pgd": (24.25, 33.35), "trades": (27.35, 33.95),
        "mart": (26.35, 35.0), "trades-awp": (34.05, 36.2), "mart-awp": (32.3, 39.25),
    }  # fmt: skip
    for method, averages in printed.items():
        for figures, average in zip(PAPER[method][:2], averages, strict=True):
            assert sum(figures[1:]) / 2 == pytest.approx(average)
    assert len(paper_table(rows([run("off", 1)], ["clean"])).rows) == 12


def test_jobs_of_a_table() -> None:
    config = TableConfig(
        methods=("pgd",), variants={"off": [], "taser": ["regulariser.name=taser"]}, seeds=(0, 1),
        finetune=["loop.epochs=2"], tuned={"taser": {"pgd": ["regulariser.weight=0.5"]}},
    )  # fmt: skip
    jobs = config.jobs()
    assert list(jobs) == sorted(jobs)
    tuned = jobs["0-tune-1-pgd-taser"]
    assert tuned["start"] == "0-base-1-pgd-off"
    assert tuned["overrides"] == [
        "loop.epochs=2", "regulariser.name=taser", "regulariser.weight=0.5", "loop.seed=0"
    ]  # fmt: skip
    assert "0-base-1-pgd-taser" not in jobs
    with pytest.raises(ValueError, match="off"):
        TableConfig(variants={"taser": []})


@pytest.mark.parametrize("name", ["studies/demo", "studies/digits"])
def test_shipped_tables_can_be_read(name: str) -> None:
    from taser.training import read_recipe

    for job in read_table_config(name).jobs().values():
        read_recipe(job["recipe"], job["overrides"])


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("recipe: digits\nmethds: [pgd]\n")
    with pytest.raises(ValueError, match="methds"):
        read_table_config(tmp_path / "t.yaml")


def test_a_small_table_from_training_to_report(tmp_path: Path) -> None:
    config = TableConfig(
        methods=("standard",), n=10, epsilon=0.1, attacks=("fgsm",),
        overrides=["loop.epochs=1", "data.examples=200", "loop.batch=64", "validation.steps=1",
                   "model.width=4", "loop.threads=1"],
        finetune=["loop.epochs=1"],
    )  # fmt: skip
    queue = Queue(tmp_path / "runs")
    queue.add(config.jobs())
    queue.work(do, queue.names())
    assert not queue.failures()
    page = method_study.write(queue, tmp_path, title="Small")
    text = page.read_text()
    assert "Fine-tuned" in text
    assert "Trained from scratch" in text
    entries = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["variant"], row["finetuned"]) for row in entries} == {
        ("off", False), ("off", True), ("taser", True)
    }  # fmt: skip
    assert (tmp_path / "table.tex").read_text().count(r"\begin{tabular}") == 3
