"""One trained network under the attacks of a study."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from taser.attacks import Threat
from taser.data import Split
from taser.evaluation import evaluate
from taser.progress import Progress


def judged(
    model: nn.Module, folder: Path, test: Split, asked: dict[str, Any], progress: Progress | None
) -> list[dict[str, Any]]:
    """One record for all attacks on the same number of examples."""
    sizes = dict.fromkeys(asked["attacks"].values())
    return [
        json.loads(
            evaluate(
                model, test.x, test.y,
                threat=Threat(asked["norm"], asked["epsilon"], *test.box),
                attacks=[name for name, size in asked["attacks"].items() if size == n], n=n,
                out=folder / f"evaluation-{n}", progress=progress,
            ).to_json()
        )
        for n in sorted(sizes, reverse=True)
    ]  # fmt: skip
