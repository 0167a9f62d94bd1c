"""Records of a queue: without weights, and still a queue that goes on."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taser.cli import app
from taser.compare._comparison import do, keep
from taser.compare._comparison_config import TableConfig
from taser.compare._jobs import Queue
from taser.report import _comparison_report as method_study
from taser.report._method_tables import Finished

CONFIG = TableConfig(
    methods=("standard",), n=40, epsilon=0.1, attacks=("fgsm",), scratch=("off",),
    overrides=["data.examples=200", "loop.epochs=1", "validation.steps=1", "model.width=4",
               "loop.threads=1"],
    finetune=["loop.epochs=1"],
)  # fmt: skip
FIRST = "0-2-train-0-standard-off"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three runs that was stopped after the first."""
    out = tmp_path_factory.mktemp("begun")
    queue = Queue(out / "runs")
    queue.add(CONFIG.jobs())
    queue.work(do, [FIRST])
    assert queue.finished(FIRST)
    return out


def test_a_copy_has_what_is_needed_to_report_and_to_go_on(begun: Path, tmp_path: Path) -> None:
    assert keep(Queue(begun / "runs"), tmp_path / "runs") == [FIRST]
    assert names(tmp_path / "runs" / FIRST) == {
        "job.json", "result.json", "run/config.yaml", "run/log.jsonl", "run/result.json",
        "run/model.json", "run/best.safetensors",
    }  # fmt: skip
    before = json.loads((tmp_path / "runs" / FIRST / "result.json").read_text())
    queue = Queue(tmp_path / "runs")
    page, _ = method_study.write(Finished.of(queue), tmp_path, title="Kept")
    assert "Trained from scratch" in page.read_text()
    assert "1 seed. Δ against" in page.read_text()  # no words about attacks that are not in it

    queue.add(CONFIG.jobs())
    queue.work(do, queue.names())
    assert not queue.failures()
    assert all(queue.finished(name) for name in queue.names())
    assert queue.result(FIRST) == before

    keep(queue, tmp_path / "again")
    tuned = next((tmp_path / "again").glob("*standard-taser*")) / "run" / "config.yaml"
    assert f"weights: {FIRST}/run/best.safetensors" in tuned.read_text()
    assert str(tmp_path) not in tuned.read_text()


def test_weights_that_no_run_needs_stay_behind(begun: Path, tmp_path: Path) -> None:
    alone = Queue(tmp_path / "queue")
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / FIRST).symlink_to(begun / "runs" / FIRST)
    keep(alone, tmp_path / "kept")
    assert "run/best.safetensors" not in names(tmp_path / "kept" / FIRST)


def test_the_command(begun: Path, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["study", "keep", str(begun), str(tmp_path / "kept")])
    assert found.exit_code == 0
    assert "1 finished run(s)" in found.output
    wrong = CliRunner().invoke(app, ["study", "keep", str(tmp_path), str(tmp_path / "other")])
    assert wrong.exit_code == 1
    assert "is finished yet" in wrong.output
