"""Output of the experiments: table.md, figures.json and a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A Markdown table, numbers to the right, its caption below."""
    rule = ":--" + "|--:" * (len(headings) - 1)
    lines = [" | ".join(cells) for cells in (headings, *rows)]
    body = "\n".join(f"| {line} |" for line in lines[1:])
    return f"| {lines[0]} |\n|{rule}|\n{body}\n\n{caption}\n"


def write(out: Path, tables: Sequence[str], figures: Any, picture: str, figure: Figure) -> None:
    """Print the tables; write table.md, figures.json and the picture into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(tables)
    (out / "table.md").write_text(text)
    (out / "figures.json").write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
    figure.savefig(out / picture, dpi=150, bbox_inches="tight")
    print(f"{text}\nWritten to {out}: table.md, figures.json, {picture}")
