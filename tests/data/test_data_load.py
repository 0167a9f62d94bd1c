from pathlib import Path

import numpy as np
import pytest
import torch

from taser.data import Dataset, Standardisation, load
from taser.data._published import find


def test_digits_are_sixteenths_and_split_by_class() -> None:
    digits = load("digits")
    assert digits.input_shape == (1, 8, 8)
    assert digits.classes == tuple("0123456789")
    assert [len(split) for split in digits.splits.values()] == [1295, 143, 359]
    for split in digits.splits.values():
        assert torch.equal((16 * split.x).round(), 16 * split.x)
        shares = torch.bincount(split.y) / len(split)
        assert (shares - 0.1).abs().max() < 0.02
    assert digits.standardisation is None


def test_splits_share_no_example() -> None:
    digits = load("digits")
    rows = torch.cat([split.x.flatten(1) for split in digits.splits.values()])
    assert len(rows) == 1797
    assert len(rows.unique(dim=0)) == 1797


def test_splits_are_the_same_every_time_and_everywhere() -> None:
    assert (
        load("digits").hash
        == load("digits").hash
        == ("941de1e0442d7b9d59d154f5ceec8634db42e0065626c730ce4c47f96a780f38")
    )
    assert load("digits", seed=1).hash != load("digits").hash


def test_validation_share_leaves_the_test_part_alone() -> None:
    assert load("digits", validation=0.3).test.hash == load("digits").test.hash


def test_standardisation_is_of_the_training_part_alone() -> None:
    cancer = load("breast-cancer")
    assert cancer.classes == ("malignant", "benign")
    assert cancer.columns is not None
    assert cancer.columns[0] == "mean radius"
    torch.testing.assert_close(cancer.train.x.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    assert cancer.test.x.mean(0).abs().max() > 1e-3
    raw = load("breast-cancer", standardise=False)
    assert cancer.standardisation == Standardisation.fit(raw.train.x)
    torch.testing.assert_close(cancer.standardisation.invert(cancer.test.x), raw.test.x)


def test_regression_standardises_its_target_too() -> None:
    diabetes = load("diabetes")
    raw = load("diabetes", standardise=False)
    assert diabetes.task == "regression"
    assert diabetes.classes is None
    assert raw.target_standardisation is None
    assert 25 <= float(raw.train.y.min()) <= float(raw.train.y.max()) <= 346
    target = diabetes.target_standardisation
    assert target is not None
    torch.testing.assert_close(target.invert(diabetes.test.y[:, None])[:, 0], raw.test.y)


def test_images_are_not_standardised() -> None:
    with pytest.raises(ValueError, match="digits holds images"):
        load("digits", standardise=True)


@pytest.mark.parametrize("name", ["fashion_mnist", "Fashion-MNIST", "fashionmnist"])
def test_names_are_found_whatever_their_hyphens(name: str) -> None:
    known = find(name)
    assert known is not None
    assert known.name == "fashion-mnist"


@pytest.mark.parametrize(
    ("name", "near"), [("cifar", "cifar10"), ("mnits", "mnist"), ("diabetis", "diabetes")]
)
def test_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        load(name)


def test_unlike_anything_gets_the_list() -> None:
    with pytest.raises(ValueError, match="called 'zzz'; there are digits, mnist"):
        load("zzz")


def test_missing_and_strange_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder at"):
        load("nowhere.npz")
    with pytest.raises(FileNotFoundError, match="no file or folder at"):
        load(tmp_path / "digits")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"folder of images or end in .npz, .csv, .parquet"):
        load(tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 8}, "digits takes no size"),
        ({"task": "regression"}, "does not fit digits, whose targets are for the other task"),
        ({"target": "y", "task": "regression"}, "digits takes no target"),
        ({"ignore": ("id",)}, "digits takes no ignore"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load("digits", **options)


def test_an_empty_list_is_no_option() -> None:
    assert load("digits", ignore=[]).hash == load("digits").hash


def test_a_name_comes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert isinstance(load("digits"), Dataset)
    with pytest.raises(ValueError, match="one folder of images for each class"):
        load("./digits")


def test_bytes_become_the_nearest_float(tmp_path: Path) -> None:
    every = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (40, 1, 1, 1))
    np.savez(tmp_path / "all.npz", x=every, y=np.arange(40) % 2)
    x = load(tmp_path / "all.npz").train.x
    exact = (np.arange(256, dtype=np.float64) / 255).astype(np.float32)
    assert np.array_equal(x[0].flatten().numpy(), exact)
