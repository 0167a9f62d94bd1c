"""The log of a run: lines of JSON, and TensorBoard if that is installed."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taser._files import write_atomically


class Log:
    """Lines {"step": …, "kind": "train" | "validation", …} appended to log.jsonl.

    A resumed run first removes what the interrupted one wrote after its last checkpoint, so that
    the log is that of an uninterrupted run.
    """

    def __init__(self, folder: Path, from_step: int, *, enabled: bool = True) -> None:
        self.path = folder / "log.jsonl"
        self.enabled = enabled
        self._board: Any = None
        if not enabled:
            return
        folder.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_log(folder) if line["step"] <= from_step]
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=from_step + 1)

    def write(self, step: int, kind: str, numbers: dict[str, float]) -> None:
        """Append one line."""
        if not self.enabled:
            return
        with self.path.open("a") as stream:
            stream.write(json.dumps({"step": step, "kind": kind, **numbers}) + "\n")
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flush and close TensorBoard's file."""
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; a last line that was cut short by a crash is left out."""
    path = folder / "log.jsonl"
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines
