"""Other data in the numbers that a model was trained on."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from taser.data import Dataset, Preprocessing, load


def table(path: Path, columns: str, shift: float = 0.0, labels: str = "no yes") -> Path:
    """A CSV of the same forty rows, with its columns in this order."""
    values = np.random.default_rng(0).normal(size=(40, 3))
    names = labels.split()
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*columns, "label"])
        for row in values:
            own = dict(zip("abc", row + shift, strict=True))
            writer.writerow([*(own[name] for name in columns), names[int(row[0] > 0)]])
    return path


def raw(path: Path) -> Dataset:
    return load(path, target="label", standardise=False)


def test_new_rows_are_scaled_by_the_old_numbers_and_found_by_their_names(tmp_path: Path) -> None:
    own = load(table(tmp_path / "a.csv", "abc"), target="label")
    kept = Preprocessing.from_json(Preprocessing.of(own).to_json())
    assert kept == Preprocessing.of(own)
    same = kept.apply(raw(table(tmp_path / "b.csv", "cab")))
    torch.testing.assert_close(same.test.x, own.test.x)
    moved = kept.apply(raw(table(tmp_path / "c.csv", "abc", shift=5.0)))
    assert own.standardisation is not None
    expected = own.test.x + 5 / torch.tensor(own.standardisation.std)
    torch.testing.assert_close(moved.test.x, expected, rtol=1e-5, atol=1e-5)


def test_a_regression_keeps_the_units_of_its_targets() -> None:
    own = load("diabetes")
    kept = Preprocessing.from_json(Preprocessing.of(own).to_json())
    raw = load("diabetes", standardise=False)
    assert kept.targets is not None
    torch.testing.assert_close(kept.targets.invert(own.test.y[:, None])[:, 0], raw.test.y)
    torch.testing.assert_close(kept.apply(raw).test.y, own.test.y)
    older = Preprocessing.from_json('{"classes": null, "columns": null, "standardisation": null}')
    assert older.targets is None


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    kept = Preprocessing.of(load(table(tmp_path / "a.csv", "abc"), target="label"))
    with pytest.raises(ValueError, match="no column 'b', which the model was trained on"):
        kept.apply(raw(table(tmp_path / "b.csv", "ac")))


def test_classes_are_found_by_their_names(tmp_path: Path) -> None:
    kept = Preprocessing.of(load(table(tmp_path / "a.csv", "abc"), target="label"))
    swapped = kept.apply(raw(table(tmp_path / "b.csv", "abc", labels="yes no")))
    own = raw(table(tmp_path / "c.csv", "abc", labels="yes no"))
    assert swapped.classes == ("no", "yes")
    assert [swapped.classes[i] for i in swapped.test.y] == [own.classes[i] for i in own.test.y]  # type: ignore[index]
    with pytest.raises(ValueError, match="has a class 'maybe'"):
        kept.apply(raw(table(tmp_path / "d.csv", "abc", labels="maybe no")))
