"""README and docs quote no interval that is not in the records."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = [*(ROOT / "results").rglob("table.md"), *(ROOT / "benchmarks/results").glob("*.md")]
INTERVAL = re.compile(r"[+-]?\d+\.\d+ \[-?\d+\.\d+, -?\d+\.\d+\]")


def intervals(text: str) -> set[str]:
    """Those such as +7.2 [3.3, 11.1], with one kind of minus, a plus left out and lines joined."""
    plain = re.sub(r"\s+", " ", text.replace("−", "-"))
    return {found.removeprefix("+") for found in INTERVAL.findall(plain)}


@pytest.fixture(scope="module")
def recorded() -> set[str]:
    return intervals("\n".join(path.read_text() for path in RECORDS))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_intervals_are_recorded(page: Path, recorded: set[str]) -> None:
    assert intervals(page.read_text()) <= recorded


def test_a_figure_that_was_not_measured_is_noticed(recorded: set[str]) -> None:
    assert intervals("gains **+7.2\n[3.3, 11.1]**") == {"7.2 [3.3, 11.1]"}
    assert not intervals("gains −7.3 [−11.1, −3.3]") <= recorded
