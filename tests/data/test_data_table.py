import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from taser.data import load

AGES = np.arange(40)


def write(path: Path, header: str, rows: list[str]) -> Path:
    file = path / "people.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rows = [f"{age}, {age * 1.5 + 0.25},{'yes' if age % 2 else 'no'},{age * 10}" for age in AGES]
    return write(tmp_path, "age,height,smokes,income", rows)


def test_classes_from_text(people: Path) -> None:
    data = load(people, target="smokes")
    assert data.name == "people"
    assert data.classes == ("no", "yes")
    assert data.columns == ("age", "height", "income")
    raw = load(people, target="smokes", standardise=False)
    assert torch.equal(raw.train.x[:, 0] % 2, raw.train.y.float())
    assert data.standardisation is not None
    torch.testing.assert_close(data.standardisation.invert(data.test.x), raw.test.x)


def test_numbers_are_a_regression_unless_few_and_whole(people: Path, tmp_path: Path) -> None:
    data = load(people, target="income", ignore=["smokes"], standardise=False)
    assert data.task == "regression"
    torch.testing.assert_close(data.train.y, data.train.x[:, 0] * 10)
    few = write(tmp_path, "a,b", [f"{k},{k % 3}" for k in range(40)])
    assert load(few, target="b").classes == ("0", "1", "2")
    assert load(few, target="b", task="regression").classes is None


@pytest.mark.parametrize("form", ["{}", "{}.0"])
def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path, form: str) -> None:
    file = write(tmp_path, "a,b", [f"{k},{form.format(k % 12)}" for k in range(120)])
    data = load(file, target="b", standardise=False)
    assert data.classes == tuple(map(str, range(12)))
    assert torch.equal(data.train.x[:, 0] % 12, data.train.y.float())


def test_numbers_beside_text_and_beyond_floats_are_names(tmp_path: Path) -> None:
    for names in (("9", "10", "ten"), (str(2**60), str(2**60 + 1))):
        file = write(tmp_path, "a,b", [f"{k},{names[k % len(names)]}" for k in range(60)])
        assert load(file, target="b", task="classification").classes == tuple(sorted(names))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "a table needs the column to predict, by --target.*age, height, smokes, income"),
        ({"target": "smoke"}, r"no column 'smoke' \(did you mean 'smokes'\?\); it has age"),
        ({"target": "age", "ignore": ["zzz"]}, "no column 'zzz'; it has"),
        (
            {"target": "smokes", "task": "regression"},
            "'smokes' of .* should hold finite.*classes take",
        ),
        ({"target": "age", "ignore": ["height", "smokes", "income"]}, "no column left"),
        ({"target": "smokes", "task": "sorting"}, "task should be one of classification, regr"),
        ({"target": "smokes", "size": 8}, "a table takes no size"),
    ],
)
def test_bad_requests_are_refused(people: Path, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load(people, **options)


@pytest.mark.parametrize(
    ("header", "rows", "says"),
    [
        ("a,y", ["1,0", ",1"], "column 'a' of .* line 3 has ''"),
        ("a,y", ["1,0", "nan,1"], "line 3 has 'nan'"),
        ("a,y", ["1,0", "inf,1"], "line 3 has 'inf'"),
        ("a,y", ["1,no", "2,"], "column 'y' of .* no label.* line 3 has ''; 1 of 2 rows"),
        ("a,y", ["1,no", "", "2,NaN", "3,yes", "4,NA"], "line 4 has 'NaN'; 2 of 4 rows"),
        ("a,y", ["1,0", "2,nan", "3,1"], "column 'y' of .* line 3 has 'nan'; 1 of 3 rows"),
        ("a,y", ["1,0", "2"], "has 2 columns, but 1 in line 3"),
        ("a,a,y", ["1,1,0"], "two columns of one name"),
        ("a,y", [], "it is empty"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, header: str, rows: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load(write(tmp_path, header, rows), target="y")


def test_parquet_is_read_like_csv(people: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is optional and not installed")
    csv, parquet = (
        importlib.import_module("pyarrow.csv"),
        importlib.import_module("pyarrow.parquet"),
    )
    file = people.with_suffix(".parquet")
    parquet.write_table(csv.read_csv(people), file)
    assert load(file, target="smokes").hash == load(people, target="smokes").hash
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match="truncated or is no Parquet file"):
        load(file, target="smokes")


def test_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pyarrow(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("taser.data._published.import_module", no_pyarrow)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match="pip install pyarrow"):
        load(tmp_path / "x.parquet", target="y")


@pytest.mark.parametrize("gap", ["", "3"])
def test_text_with_a_gap_or_a_number_is_neither_category_nor_number(
    tmp_path: Path, gap: str
) -> None:
    file = write(tmp_path, "a,b,y", [f"{k},{'no' if k else gap},{k % 2}" for k in range(40)])
    line, entry = (2, "") if not gap else (3, "no")
    with pytest.raises(ValueError, match=rf"column 'b' of .* line {line} has '{entry}'.*ignore="):
        load(file, target="y")
