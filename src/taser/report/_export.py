"""A finished run as a folder for others: weights, architecture, preprocessing, a model card."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from taser._files import read_json, write_atomically
from taser.evaluation import Evaluation
from taser.models._weights import weights_hash
from taser.training import load_trained, read_recipe

from ._evaluation_report import table

CARD = """---
library_name: taser
tags: [adversarial-robustness, {task}]
datasets: ["{data}"]
---
# {title}

A `{name}` network for {data}: {classes} classes, float32 inputs of shape {shape}{range}. Whatever
normalises the inputs is part of the network. It was trained by the objective `{objective}` with the
regulariser `{regulariser}`; `config.yaml` has every setting.

## Measured

{measured}

## Use

```python
import taser

model = taser.training.load_trained("{source}")  # an nn.Module in eval mode
```

The package is `taser-robust`. `taser evaluate --model {source} --epsilon {epsilon}` measures the
figures again; `taser audit` with the same options checks for masked gradients.

## Files

- `model.safetensors`: the weights; sha256 of the tensors {weights}
- `model.json`: the architecture; `data.json`: the classes, and the scale of a table's columns
"""


def export(
    run: Path | str, out: Path | str, *, evaluations: Sequence[Path | str] = (),
    which: Literal["best", "last"] = "best", source: str | None = None,
) -> Path:  # fmt: skip
    """Write a run's network to the folder `out`, which `load_trained` and `--model` read.

    evaluations: folders of `taser evaluate` on these weights. Their figures go into the model card,
    and those of AutoAttack into robustbench.json. which: the run's best or last weights; source:
    the name under which the card loads the model, by default that of `out`.
    """
    run, out = Path(run), Path(out)
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty: choose another folder, or remove it")
    model = load_trained(run, which)  # which refuses a network of the user's own code
    architecture, weights = read_json(run / "model.json"), weights_hash(model)
    records = [_read(Path(folder), weights) for folder in evaluations]
    config, shape = read_recipe(run / "config.yaml"), tuple(architecture["shape"])
    images = len(shape) == 3
    card = CARD.format(
        task=f"{'image' if images else 'tabular'}-classification", data=config.data.name,
        title=out.name, name=architecture["name"], classes=architecture["classes"], shape=shape,
        range=" in [0, 1]" if images else "", objective=config.objective.name,
        regulariser=config.regulariser.name, measured=_measured(records),
        source=source or out.name, epsilon=f"{config.objective.epsilon:.7g}", weights=weights,
    )  # fmt: skip
    for name in ("data.json", "config.yaml"):
        if (run / name).is_file():
            write_atomically(out / name, (run / name).read_text())
    for record in records:
        if "autoattack" in record.attacks:
            model_information = _robustbench(record, config.data.name, architecture, out.name)
            text = json.dumps(model_information, indent=1, ensure_ascii=False)
            write_atomically(out / "robustbench.json", f"{text}\n")
    write_atomically(out / "README.md", card)
    shutil.copyfile(run / f"{which}.safetensors", out / "model.safetensors")
    write_atomically(out / "model.json", json.dumps(architecture, indent=1))  # last: all is there
    return out


def _read(folder: Path, weights: str) -> Evaluation:
    path = folder / "evaluation.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a folder of `taser evaluate`")
    record = Evaluation.from_json(path.read_text())
    if record.provenance.weights != weights:
        raise ValueError(f"{path} is of other weights than those exported")
    return record


def _measured(records: Sequence[Evaluation]) -> str:
    if not records:
        return "Not evaluated yet."
    parts = [f"{record.threat}, {record.n} test examples:\n\n{table(record).markdown()}"
             for record in records]  # fmt: skip
    findings = {str(finding) for record in records for finding in record.findings}
    return "\n".join([*parts, *(f"- Finding: {text}" for text in sorted(findings))]).rstrip()


def _robustbench(
    record: Evaluation, data: str, architecture: dict[str, Any], name: str
) -> dict[str, Any]:
    """The fields of RobustBench's model information; accuracies in per cent."""
    return {
        "name": name, "dataset": data, "architecture": architecture["name"],
        "threat_model": {"linf": "Linf", "l2": "L2"}[record.threat.norm],
        "eps": record.threat.epsilon, "additional_data": False, "number_forward_passes": 1,
        "clean_acc": f"{100 * record.clean_accuracy:.2f}",
        "autoattack_acc": f"{100 * record.accuracy('autoattack'):.2f}",
        "footnote": f"AutoAttack on {record.n} test examples.",
    }  # fmt: skip
