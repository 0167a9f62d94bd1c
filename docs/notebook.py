"""The tutorial as a notebook.

    python docs/notebook.py

writes docs/tutorial.ipynb anew from docs/tutorial.md: its text and its blocks of code as cells,
without outputs.
"""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parent / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(markdown: str) -> str:
    """The notebook's JSON (format 4.4)."""
    cells: list[dict] = []
    for number, part in enumerate(BLOCK.split(markdown)):  # text, code, text, …
        source = part.strip().splitlines(keepends=True)
        if number % 2:
            cells.append({"cell_type": "code", "execution_count": None, "outputs": []})
        elif source:
            cells.append({"cell_type": "markdown"})
        else:  # nothing between two blocks
            continue
        cells[-1] |= {"metadata": {}, "source": source}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text()), encoding="utf-8")
