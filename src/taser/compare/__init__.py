"""Comparisons: methods, regularisers and seeds, trained and evaluated alike."""

from ._comparison import compare
from ._comparison_config import ComparisonConfig, Search, read_comparison
from ._run_results import Results, Row, RunResult, read_results, rows, write_records
from ._runs import RunsFailed

__all__ = [
    "ComparisonConfig", "Results", "Row", "RunResult", "RunsFailed", "Search", "compare",
    "read_comparison", "read_results", "rows", "write_records",
]  # fmt: skip
