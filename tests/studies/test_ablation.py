"""An ablation from its settings to its report, at small size."""

import json
from pathlib import Path

from test_table import run

from taser.compare._comparison import do, keep
from taser.compare._comparison_config import TableConfig, job_name, read_table_config
from taser.compare._jobs import Queue
from taser.compare._run_results import rows
from taser.report import ablation as report
from taser.report._method_tables import Finished, draw_frontier, families
from taser.scores import Denoiser
from taser.studies.ablation import DEFAULT, fit_half_trained
from taser.training import read_recipe

QUICK = ["loop.epochs=1", "data.examples=200", "loop.batch=64", "validation.steps=1",
         "model.width=4", "loop.threads=1"]  # fmt: skip


def test_from_settings_to_report(tmp_path: Path) -> None:
    taser = ["regulariser.name=taser"]
    config = TableConfig(
        methods=("standard",), n=10, epsilon=0.1, attacks=("fgsm",), overrides=QUICK,
        variants={
            "off": [], DEFAULT: taser, "taser λ=0.1": [*taser, "regulariser.weight=0.1"],
            "taser λ=0.01": [*taser, "regulariser.weight=0.01"],
            "half-trained score": [*taser, "regulariser.score=half-trained"],
            "white directions": [*taser, "regulariser.replaced=white"],
        },
    )  # fmt: skip
    fit_half_trained(config, tmp_path)
    half = Denoiser.load(tmp_path / "half-trained.safetensors")
    assert half.event_shape == (1, 8, 8)
    queue = Queue(tmp_path / "runs")
    queue.add(config.jobs())
    queue.work(do, queue.names())
    assert not queue.failures()
    kept = Queue(tmp_path / "elsewhere" / "runs")
    assert len(keep(queue, kept.folder)) == len(config.variants)
    kept.add(config.jobs())  # the same jobs in another folder
    records = [path for path in kept.folder.rglob("*.*") if path.suffix in (".json", ".yaml")]
    assert records
    assert not any(str(tmp_path) in path.read_text() for path in records)
    study = Finished.of(queue)
    page, _ = report.write(study, tmp_path)
    text = page.read_text()
    assert "Robust against clean" in text
    assert "One part changed" in text
    markdown = (tmp_path / "table.md").read_text()
    assert "half-trained score" in markdown
    assert "No run with TASER" not in markdown
    changed = {row.variant for row in report.changes(study)}
    assert changed == {DEFAULT, "half-trained score", "white directions"}
    assert json.loads((tmp_path / "rows.json").read_text())


def test_curves_are_in_the_order_of_lambda() -> None:
    found = rows(
        [run("off", 1), run("taser λ=0.1", 30), run("taser λ=0.03", 20), run("other", 3)],
        ["clean", "autoattack"],
    )
    curves = families(found)
    assert [row.variant for row in curves["taser"]] == ["taser λ=0.03", "taser λ=0.1"]
    assert list(curves) == ["taser"]
    assert draw_frontier(found) is not None
    assert draw_frontier(found[:1]) is None


def test_the_shipped_ablation_can_be_read() -> None:
    config = read_table_config("studies/ablation")
    assert DEFAULT in config.variants
    for job in config.jobs().values():
        read_recipe(job["recipe"], job["overrides"])
    assert job_name("standard", "t = 10", 0) in config.jobs()
