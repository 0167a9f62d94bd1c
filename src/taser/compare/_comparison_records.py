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

from ._jobs import Queue

Record = dict[str, Any]
"""Of one run: "run", "job" and, as far as it has come, "config", "result", "evaluations",
"diagnostics", "validation" and "training"."""

FILE = "records.jsonl.xz"
FORMER = {"records": "evaluations", "closer": "diagnostics", "standing": "correct"}
"""Names in the results of older versions, and those of today."""


def read_records(folder: Path) -> list[Record]:
    """All runs of a comparison's folder, or of a folder of records, in the order of names."""
    if (folder / "runs").is_dir():
        queue = Queue(folder / "runs")
        return [_read_run(queue, name) for name in queue.names()]
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
            evaluation["clean"] = _bits(evaluation["clean"])
            for attack in evaluation["attacks"].values():
                attack["correct"] = _bits(attack["correct"])
    return records


def records_file(records: list[Record]) -> bytes:
    """The finished runs as compressed JSON lines; verdicts are strings of 0 and 1."""
    lines = []
    for record in records:
        if "result" in record:
            compact = [_compact(each) for each in record.get("evaluations", [])]
            line = {**record, "evaluations": compact} if compact else record
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


def _compact(evaluation: dict[str, Any]) -> dict[str, Any]:
    attacks = {name: {**attack, "correct": _text(attack["correct"])}
               for name, attack in evaluation["attacks"].items()}  # fmt: skip
    return {**evaluation, "attacks": attacks, "clean": _text(evaluation["clean"])}


def _text(verdicts: list[int]) -> str:
    return "".join(map(str, verdicts))


def _bits(text: str) -> list[int]:
    return [int(character) for character in text]


def _read_run(queue: Queue, name: str) -> Record:
    home = queue.folder / name / "run"
    record: Record = {"run": name, "job": queue.job(name)}
    if (home / "config.yaml").exists():
        text = (home / "config.yaml").read_text()
        for parent in (queue.folder, queue.folder.parent):  # weights of other runs
            text = text.replace(f"{parent}/", "")
        record["config"] = yaml.safe_load(text)
    if result := _renamed(queue.result(name) or {}):
        for evaluation in result.get("evaluations", []):
            attacks = evaluation["attacks"].items()
            evaluation["attacks"] = {attack: _renamed(found) for attack, found in attacks}
        for key in ("evaluations", "diagnostics"):
            if key in result:
                record[key] = result.pop(key)
        record["result"] = result
    log = read_log(home)
    if log:
        record["validation"] = [_without_kind(line) for line in log if line["kind"] != "train"]
        record["training"] = _columns([_without_kind(x) for x in log if x["kind"] == "train"])
    return record


def _renamed(content: dict[str, Any]) -> dict[str, Any]:
    return {FORMER.get(key, key): value for key, value in content.items()}


def _without_kind(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "kind"}


def _columns(lines: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The lines by column, with five significant digits; None where a line has no such number."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [_rounded(line.get(name)) for line in lines] for name in names}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
