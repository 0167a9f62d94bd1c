"""Records of a comparison: without weights, and the report is made from them."""

import json
import lzma
import re
import shutil
from pathlib import Path

import pytest
from test_comparison import finished as finish
from typer.testing import CliRunner

from taser.cli import app
from taser.compare import ComparisonConfig, read_results, write_records
from taser.compare._comparison_records import FILE, read_records
from taser.report import write_comparison

CONFIG = ComparisonConfig(
    methods=("standard",), n=40, epsilon=0.1, attacks=("fgsm",), scratch=("off",),
    overrides=["data.examples=200", "loop.epochs=1", "validation.steps=1", "model.width=4",
               "loop.threads=1"],
    finetune=["loop.epochs=1"],
)  # fmt: skip
FIRST = "0-2-train-0-standard-off"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three runs, with its report."""
    out = tmp_path_factory.mktemp("finished")
    write_comparison(finish(CONFIG, out), out)
    return out


def test_the_layout_is_that_of_the_repository(finished: Path, tmp_path: Path) -> None:
    """The files, the keys of a line, and their order."""
    assert write_records(finished, tmp_path) == 3
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.md", "figures.json", FILE
    }  # fmt: skip
    own, kept = (
        [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
        for path in (tmp_path / FILE, ROOT / "results" / "finetune-digits" / FILE)
    )
    assert [run["run"] for run in own] == sorted(run["run"] for run in own)
    assert {tuple(sorted(run)) for run in own} == {tuple(sorted(run)) for run in kept}
    for key in ("result", "training"):
        assert set(own[0][key]) == set(kept[0][key]), key
    assert set(own[0]["diagnostics"]) == {"curve"} <= set(kept[0]["diagnostics"])
    ours, theirs = own[0]["evaluations"][0], kept[0]["evaluations"][0]
    assert set(theirs) - {"paper_average"} <= set(ours)
    assert set(ours["attacks"]["fgsm"]) == set(theirs["attacks"]["autoattack"])
    assert re.fullmatch("[01]{40}", ours["attacks"]["fgsm"]["correct"])
    assert (tmp_path / "table.md").read_bytes() == (finished / "table.md").read_bytes()


def test_records_are_read_as_the_runs_are(finished: Path, tmp_path: Path) -> None:
    write_records(finished, tmp_path / "kept")
    kept, own = read_results(tmp_path / "kept"), read_results(finished)
    assert kept.records == own.records
    assert kept.figures() == own.figures() == (tmp_path / "kept" / "figures.json").read_text()
    write_comparison(kept, tmp_path / "report")
    assert (tmp_path / "report" / "table.md").read_text() == (finished / "table.md").read_text()
    write_records(tmp_path / "kept", tmp_path / "again")
    assert read_records(tmp_path / "again") == own.records


def test_the_code_of_the_readme_reads_them(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """With another folder, method, variant and attack."""
    write_records(finished, tmp_path)
    block = re.search(r"```python\n(.*?)```", (ROOT / "results/README.md").read_text(), re.DOTALL)
    assert block
    code = block[1].replace("results/digits", str(tmp_path)).replace("autoattack", "fgsm")
    exec(compile(code.replace('("pgd", "taser")', '("standard", "taser")'), "README", "exec"), {})
    (row,) = (row for row in read_results(tmp_path).rows() if row.variant == "taser")
    assert capsys.readouterr().out.startswith(f"{100 * row.accuracy['fgsm'].value:.1f} [")


def test_no_paths_and_no_weights_are_kept(finished: Path, tmp_path: Path) -> None:
    write_records(finished, tmp_path)
    text = lzma.decompress((tmp_path / FILE).read_bytes()).decode()
    assert f'"weights": "{FIRST}/run/best.safetensors"' in text
    assert str(finished) not in text


def test_kept_records_of_the_repository_are_read() -> None:
    results = read_results(ROOT / "results" / "beyond")
    wanted = json.loads((ROOT / "results" / "beyond" / "figures.json").read_text())["rows"]
    found = json.loads(results.figures())["rows"]
    for row, kept in zip(found, wanted, strict=True):
        for key in ("accuracy", "gain", "gain_range", "gain_retrained"):
            former = {m: v for m, v in (kept[key] or {}).items() if m != "corrupted"}
            if key in ("accuracy", "gain_retrained"):  # which had other intervals at that time
                now = {m: v["value"] for m, v in (row[key] or {}).items()}
                assert now == {m: v["value"] for m, v in former.items()}
            else:
                assert (row[key] or {}) == former
    assert not results.missing  # older records also hold evaluations under another threat


def test_a_folder_of_an_older_version_is_refused_in_a_sentence(
    finished: Path, tmp_path: Path
) -> None:
    """Whose results had other names for three of their keys."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "runs" / FIRST / "result.json"
    path.write_text(path.read_text().replace('"diagnostics"', '"closer"'))
    with pytest.raises(ValueError, match=f"result of {FIRST} in .* is damaged, or another version"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("result.json", "[1]", "result.json should hold a JSON object; got"),
        ("result.json", '{"method": "pgd"', "result.json is not JSON"),
        ("result.json", '{"evaluations": 3, "diagnostics": {}}', "is damaged, or another version"),
        ("job.json", "3", "job.json should hold a JSON object"),
        ("job.json", "\udcff", "job.json is not JSON"),
        ("run/config.yaml", "[[[", "config.yaml cannot be read as YAML"),
    ],
)
def test_damaged_files_are_named(
    finished: Path, tmp_path: Path, file: str, content: str, message: str
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "runs" / FIRST / file
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message):
        read_results(tmp_path)


def test_damaged_records_are_named(finished: Path, tmp_path: Path) -> None:
    write_records(finished, tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    for damaged in (whole[:-40], b"", whole[: len(whole) // 2], lzma.compress(b"[1]\n{}\n")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{FILE} (is truncated or damaged|holds no records)"):
            read_results(tmp_path)


def test_records_that_unpack_to_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taser._files.LARGEST", 2**20)
    (tmp_path / FILE).write_bytes(lzma.compress(b"0" * 2**21))
    with pytest.raises(ValueError, match=f"{FILE} .*unpacks to more than 1,048,576 bytes"):
        read_results(tmp_path)


def test_the_report_begins_with_the_missing_runs(finished: Path, tmp_path: Path) -> None:
    """In the report, on the terminal, in kept records; and the exit code is not zero."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "runs" / "0-3-tune-0-standard-taser"
    (path / "result.json").unlink()
    first = "Incomplete: 2 of 3 runs are finished. Missing: Standard (fine-tuned) + TASER, seed 0: "
    found = CliRunner().invoke(app, ["compare", str(tmp_path), "--report"])
    assert found.exit_code == 1
    assert found.stdout.startswith(f"{first}not finished\n")
    (path / "error.txt").write_text("the loss is not finite\n")
    page = write_comparison(read_results(tmp_path), tmp_path).read_text()
    assert f'class="summary"><p>{first}the loss is not finite</p>' in page
    kept = CliRunner().invoke(app, ["compare", str(tmp_path), "--keep", str(tmp_path / "kept")])
    assert kept.exit_code == 1
    assert read_results(tmp_path / "kept").completeness == f"{first}the loss is not finite"
    assert read_results(finished).completeness == "All 3 runs are finished."


def test_what_cannot_be_read_is_refused_in_a_sentence(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no comparison in"):
        read_results(tmp_path)
    with pytest.raises(ValueError, match="holds no records of a comparison"):
        read_results(ROOT / "results" / "toy1d")
    shutil.copytree(finished, tmp_path / "strange")
    path = tmp_path / "strange" / "runs" / FIRST / "result.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 0'))
    with pytest.raises(ValueError, match="evaluated by another version of taser"):
        read_results(tmp_path / "strange")


def test_the_commands(finished: Path, tmp_path: Path) -> None:
    def run(*words: object, code: int = 0) -> str:
        found = CliRunner().invoke(app, ["compare", *map(str, words)])
        assert found.exit_code == code, found.output
        return found.output

    assert "Kept in" in (said := run(finished, "--keep", tmp_path / "kept"))
    assert "3 finished run(s)" in said
    assert "| Standard | — |" in run("--report", tmp_path / "kept", "--out", tmp_path / "report")
    assert (tmp_path / "report" / "report.html").exists()
    assert "3 of 3 runs" in run(finished, "--status")
    assert "is finished yet" not in run(tmp_path, "--keep", tmp_path / "other", code=1)
    assert "there are no runs in" in run(tmp_path, "--status", code=1)
    assert "give one of" in run(finished, "--status", "--report", code=1)
    assert "take one folder" in run(finished, finished, "--report", code=1)
    assert "is a folder" in run(finished, code=1)
