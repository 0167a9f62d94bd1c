"""Results turned into tables, figures and one self-contained HTML page."""

from ._comparison_report import write_comparison
from ._export import export

__all__ = ["export", "write_comparison"]
