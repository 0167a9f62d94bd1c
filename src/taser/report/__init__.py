"""Results turned into tables, figures and one self-contained HTML page."""

from ._comparison_report import write_comparison

__all__ = ["write_comparison"]
