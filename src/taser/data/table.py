"""Tables with a target column, as CSV or Parquet."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from taser.nearest import hint

from .dataset import Task
from .labels import numbered
from .parquet import pyarrow_parquet
from .parts import Examples, Parts

FEW = 20  # distinct whole numbers: up to here a target is taken for a class


def read_table(
    path: Path, *, target: str | None, ignore: Sequence[str] = (), task: Task | None = None
) -> Parts:
    """The columns of numbers as features, in their order, and the column `target` as y.

    ignore: columns to leave out. task: whether the target is a class or a number; by default a
    class if it is text or has at most 20 distinct values, all whole.
    """
    if task is not None and task not in get_args(Task):
        raise ValueError(f"task should be one of {', '.join(get_args(Task))}; got {task!r}")
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    if target is None:
        raise ValueError(
            f"a table needs target=, the column to predict; {path} has {', '.join(table)}"
        )
    for name in (target, *ignore):
        if name not in table:
            raise ValueError(
                f"{path} has no column {name!r}{hint(name, table)}; it has {', '.join(table)}"
            )
    columns = tuple(name for name in table if name != target and name not in ignore)
    if not columns:
        raise ValueError(f"{path} has no column left for the features, only {target!r}")
    x = np.stack([_numbers(table[name], name, path) for name in columns], 1)
    y, classes = _targets(table[target], target, path, task)
    return Parts(Examples(x, y), classes=classes, columns=columns)


def _targets(
    column: np.ndarray, name: str, path: Path, task: Task | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    if task is None:
        task = "classification" if _looks_like_classes(column) else "regression"
    if task == "regression":
        return _numbers(column, name, path), None
    if (missing := np.flatnonzero(column == "")).size:
        raise ValueError(f"column {name!r} of {path} has no label in row {missing[0] + 1}")
    (numbers,), classes = numbered([_in_order(column)])
    return numbers, classes


def _looks_like_classes(column: np.ndarray) -> bool:
    try:
        values = np.unique(column.astype(np.float64))
    except ValueError:
        return True
    return len(values) <= FEW and bool((values == np.round(values)).all())


def _in_order(column: np.ndarray) -> np.ndarray:
    """Whole numbers as numbers, so that 10 comes after 9; everything else as the text it is."""
    try:
        values = column.astype(np.float64)
    except ValueError:
        return column
    exact = np.abs(values) < 2**53  # beyond, neighbours would become one
    return values.astype(np.int64) if (exact & (values == np.round(values))).all() else column


def _numbers(column: np.ndarray, name: str, path: Path) -> np.ndarray:
    try:
        values = column.astype(np.float64)
        if np.isfinite(values).all():
            return values
        row = int(np.flatnonzero(~np.isfinite(values))[0])
    except ValueError:
        row = next(row for row, entry in enumerate(column) if not _is_number(entry))
    raise ValueError(
        f"column {name!r} of {path} should hold finite numbers only; row {row + 1} has "
        f"{str(column[row])!r}. Encode it, drop those rows, or leave it out with ignore={[name]!r} "
        "(data.ignore in a recipe)"
    )


def _is_number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


def _csv(path: Path) -> dict[str, np.ndarray]:
    """The columns as text; the first row names them."""
    with open(path, newline="", encoding="utf-8-sig") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if len(rows) < 2:
        raise ValueError(f"{path} should have a row of column names and rows below; it is empty")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) != len(names):
        raise ValueError(f"{path} has two columns of one name: {', '.join(names)}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise ValueError(f"{path} has {len(names)} columns, but {len(row)} in row {number}")
    return {
        name: np.array([entry.strip() for entry in column])
        for name, column in zip(names, zip(*rows[1:], strict=True), strict=True)
    }


def _parquet(path: Path) -> dict[str, np.ndarray]:
    parquet = pyarrow_parquet()
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is truncated or is no Parquet file: {error}") from error
    # As text, like CSV, so that one set of rules decides what is a number and what is missing.
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return {
        name: np.array(["" if entry is None else str(entry) for entry in column])
        for name, column in columns.items()
    }
