"""An ablation from its settings to its table of changes, at small size; every YAML can be read."""

import json
import lzma
from functools import partial
from pathlib import Path

import pytest

import ablation
from taser.compare import ComparisonConfig, read_comparison, read_results, write_records
from taser.compare._comparison import run_job
from taser.compare._comparison_config import job_name
from taser.compare._runs import Call, Runs
from taser.report import write_comparison

ROOT = Path(__file__).parents[2]
QUICK = ["loop.epochs=1", "data.examples=200", "loop.batch=64", "validation.steps=1",
         "model.width=4", "loop.threads=1"]  # fmt: skip
TASER = ["regulariser.name=taser"]


def config(variants: dict[str, list[str]]) -> ComparisonConfig:
    return ComparisonConfig(
        methods=("standard",), n=10, epsilon=0.1, attacks=("fgsm",), overrides=QUICK,
        variants=variants,
    )  # fmt: skip


def test_from_settings_to_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where the YAML's half-trained score is found
    shipped = read_comparison("experiments/ablation.yaml", trust_code=True).variants
    named = ("off", "taser", "half-trained score", "shuffled scores")
    settings = config({name: shipped[name] for name in named})
    runs = Runs(tmp_path / "runs")
    runs.add(settings.runs())
    for name in runs.names():
        Call(runs.folder / name, partial(run_job, trust_code=True))()
    assert not runs.failures()
    write_comparison(read_results(tmp_path), tmp_path)
    assert write_records(tmp_path, tmp_path / "kept") == len(named)
    kept = lzma.decompress((tmp_path / "kept" / "records.jsonl.xz").read_bytes()).decode()
    assert "half_trained.py" in kept
    assert str(tmp_path) not in kept
    ablation.main([str(tmp_path)])
    out = tmp_path / "changes"
    assert "half-trained score" in (out / "table.md").read_text()
    changed = {
        row["variant"]: row["gain"] for row in json.loads((out / "figures.json").read_text())
    }
    assert set(changed) == {"taser", "half-trained score", "shuffled scores"}
    assert [name for name, gain in changed.items() if gain is None] == ["taser"]
    assert (out / "changes.png").read_bytes().startswith(b"\x89PNG")


def test_an_older_record_can_be_read(tmp_path: Path) -> None:
    """Older records call the default "TASER as it is"."""
    ablation.main([str(ROOT / "results" / "ablation"), "--out", str(tmp_path)])
    recorded = (ROOT / "results" / "ablation" / "table.md").read_text()
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert len(lines) > 16
    assert all(line in recorded for line in lines if line.startswith("| Standard"))


def test_no_run_with_taser_is_reported(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    runs.add(config({"off": []}).runs())
    Call(runs.folder / job_name("standard", "off", 0), run_job)()
    with pytest.raises(SystemExit, match="no run with TASER"):
        ablation.main([str(tmp_path)])


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("experiments/*.yaml")), ids=lambda path: path.stem
)
def test_every_yaml_can_be_read(path: Path) -> None:
    """With the recipe of every run."""
    settings = read_comparison(path, trust_code=True)
    assert settings.runs()
    if path.stem == "ablation":
        assert job_name("standard", "t = 10", 0) in settings.runs()
