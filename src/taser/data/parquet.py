"""Parquet through pyarrow, which is not required for anything else."""

from importlib import import_module
from typing import Any


def pyarrow_parquet() -> Any:
    """The module pyarrow.parquet, or an error that says how to get it."""
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "reading Parquet files needs pyarrow, which is not installed: pip install pyarrow"
        ) from error
