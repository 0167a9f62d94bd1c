"""A benchmark's files: its numbers, and a page in Markdown with its summary and tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taser._files import write_atomically

from ._page import Table


def write_bench(
    name: str,
    title: str,
    result: dict[str, Any],
    summary: Sequence[str],
    tables: Sequence[Table],
    out: Path,
    more: str = "",
) -> Path:
    """<name>.json and <name>.md in `out`; the path of the latter. more: after the tables."""
    write_atomically(out / f"{name}.json", json.dumps(result, indent=1) + "\n")
    lines = "\n".join(f"- {line}" for line in summary)
    parts = [f"# {title}", lines, *(table.markdown().rstrip() for table in tables), more]
    text = "\n\n".join(part for part in parts if part)
    return write_atomically(out / f"{name}.md", text + "\n")
