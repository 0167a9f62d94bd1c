"""Records of runs, from a comparison's folder or from one compressed file.

results/README.md in the repository describes the file's layout.
"""

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taser._files import read_bounded
from taser._settings import read_yaml
from taser.evaluation import Evaluation
from taser.training._run_folder import read_log

from ._runs import Runs

Record = dict[str, Any]
"""One run: "run", "job" and, as far as it got, "config", "result", "evaluations", "diagnostics",
"validation" and "training"; "error" if it failed."""

FILE = "records.jsonl.xz"


def read_records(folder: Path) -> list[Record]:
    """All runs in a comparison's folder, or in a folder of records, sorted by name."""
    if (folder / "runs").is_dir():
        runs = Runs(folder / "runs")
        failures = runs.failures()
        return [_read_run(runs, name, failures) for name in runs.names()]
    path = folder / FILE
    if not path.is_file():
        raise ValueError(
            f"there is no comparison in {folder}: `taser compare RECIPE --out {folder}` makes one"
        )
    try:
        with lzma.open(path) as stream:
            lines = map(json.loads, read_bounded(stream, path).splitlines())
            records = [line for line in lines if "judged" not in line["job"]]  # of an older version
        for record in records:
            for evaluation in record.get("evaluations", []) if record["job"] else []:
                evaluation["clean"] = list(map(int, evaluation["clean"]))
                for attack in evaluation["attacks"].values():
                    attack["correct"] = list(map(int, attack["correct"]))
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}") from None
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"{path} holds no records of a comparison") from None
    return records


def records_file(records: list[Record]) -> bytes:
    """The runs as compressed JSON lines; verdicts are strings of 0 and 1."""

    def compact(evaluation: dict[str, Any]) -> dict[str, Any]:
        attacks = {name: {**attack, "correct": "".join(map(str, attack["correct"]))}
                   for name, attack in evaluation["attacks"].items()}  # fmt: skip
        clean = "".join(map(str, evaluation["clean"]))
        return {**evaluation, "attacks": attacks, "clean": clean}

    lines = []
    for record in records:
        evaluations = [compact(each) for each in record.get("evaluations", [])]
        line = {**record, "evaluations": evaluations} if evaluations else record
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lzma.compress("".join(lines).encode(), preset=9)


def read_evaluation(evaluation: dict[str, Any]) -> Evaluation:
    """An evaluation in a record; raise if another version wrote it."""
    try:
        return Evaluation.from_json(json.dumps(evaluation))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"these runs were evaluated by another version of taser, and cannot be read: {error!r}"
        ) from None


def _read_run(runs: Runs, name: str, failures: Mapping[str, str]) -> Record:
    home = runs.folder / name / "run"
    record: Record = {"run": name, "job": runs.job(name)}
    if (home / "config.yaml").exists():
        text = json.dumps(read_yaml(home / "config.yaml"))
        places = (runs.folder.absolute(), runs.folder)
        for parent in (p for place in places for p in (place, place.parent)):  # other runs' weights
            text = text.replace(f"{parent}/", "")
        record["config"] = json.loads(text)
    if result := runs.result(name):
        for key in ("evaluations", "diagnostics"):
            if key in result:
                record[key] = result.pop(key)
        record["result"] = result
    elif name in failures:
        record["error"] = failures[name]
    if log := read_log(home):
        kinds = [line.pop("kind") for line in log]
        training = [line for kind, line in zip(kinds, log, strict=True) if kind == "train"]
        record["validation"] = [x for kind, x in zip(kinds, log, strict=True) if kind != "train"]
        names = dict.fromkeys(key for line in training for key in line)
        record["training"] = {
            name: [_rounded(line.get(name)) for line in training] for name in names
        }
    return record


def _rounded(value: Any) -> Any:
    """Five significant digits."""
    return float(f"{value:.5g}") if isinstance(value, float) else value
