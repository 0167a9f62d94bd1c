"""Records of runs: read from a comparison's folder, kept in one compressed file, and read again.

results/README.md in the repository describes the file's layout.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import yaml

from taser.evaluation import Evaluation
from taser.training._run_folder import read_log

from ._jobs import Runs

Record = dict[str, Any]
"""Of one run: "run", "job" and, as far as it has come, "config", "result", "evaluations",
"diagnostics", "validation" and "training"."""

FILE = "records.jsonl.xz"
FORMER = {"records": "evaluations", "closer": "diagnostics", "standing": "correct"}
"""Names in the results of older versions, and those of today."""


def read_records(folder: Path) -> list[Record]:
    """All runs of a comparison's folder, or of a folder of records, in the order of names."""
    if (folder / "runs").is_dir():
        runs = Runs(folder / "runs")
        return [_read_run(runs, name) for name in runs.names()]
    if not (folder / FILE).is_file():
        raise ValueError(
            f"there is no comparison in {folder}: `taser compare RECIPE --out {folder}` makes one"
        )
    with lzma.open(folder / FILE, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    if not all("job" in record and "result" in record for record in records):
        raise ValueError(f"{folder / FILE} holds no records of a comparison")
    for record in records:
        for evaluation in record.get("evaluations", []):
            evaluation["clean"] = list(map(int, evaluation["clean"]))
            for attack in evaluation["attacks"].values():
                attack["correct"] = list(map(int, attack["correct"]))
    return records


def records_file(records: list[Record]) -> bytes:
    """The finished runs as compressed JSON lines; verdicts are strings of 0 and 1."""

    def compact(evaluation: dict[str, Any]) -> dict[str, Any]:
        attacks = {name: {**attack, "correct": "".join(map(str, attack["correct"]))}
                   for name, attack in evaluation["attacks"].items()}  # fmt: skip
        clean = "".join(map(str, evaluation["clean"]))
        return {**evaluation, "attacks": attacks, "clean": clean}

    lines = []
    for record in records:
        if "result" in record:
            evaluations = [compact(each) for each in record.get("evaluations", [])]
            line = {**record, "evaluations": evaluations} if evaluations else record
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lzma.compress("".join(lines).encode(), preset=9)


def read_evaluation(evaluation: dict[str, Any]) -> Evaluation:
    """An evaluation of a record; those of other versions are refused."""
    try:
        return Evaluation.from_json(json.dumps(evaluation))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"these runs were evaluated by another version of taser, and cannot be read: {error!r}"
        ) from None


def _read_run(runs: Runs, name: str) -> Record:
    home = runs.folder / name / "run"
    record: Record = {"run": name, "job": runs.job(name)}
    if (home / "config.yaml").exists():
        text = (home / "config.yaml").read_text()
        for parent in (runs.folder, runs.folder.parent):  # weights of other runs
            text = text.replace(f"{parent}/", "")
        record["config"] = yaml.safe_load(text)
    if result := _renamed(runs.result(name) or {}):
        for evaluation in result.get("evaluations", []):
            attacks = evaluation["attacks"].items()
            evaluation["attacks"] = {attack: _renamed(found) for attack, found in attacks}
        for key in ("evaluations", "diagnostics"):
            if key in result:
                record[key] = result.pop(key)
        record["result"] = result
    if log := read_log(home):
        kinds = [line.pop("kind") for line in log]
        training = [line for kind, line in zip(kinds, log, strict=True) if kind == "train"]
        record["validation"] = [x for kind, x in zip(kinds, log, strict=True) if kind != "train"]
        names = dict.fromkeys(key for line in training for key in line)
        record["training"] = {
            name: [_rounded(line.get(name)) for line in training] for name in names
        }
    return record


def _renamed(content: dict[str, Any]) -> dict[str, Any]:
    return {FORMER.get(key, key): value for key, value in content.items()}


def _rounded(value: Any) -> Any:
    """Five significant digits."""
    return float(f"{value:.5g}") if isinstance(value, float) else value
