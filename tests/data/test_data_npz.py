from pathlib import Path

import numpy as np
import pytest
import torch

from taser.data import load

X = np.random.default_rng(0).random((60, 3, 4, 4), dtype=np.float32)
Y = np.arange(60) % 3


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def test_one_pair_is_split_in_three(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=X, y=Y))
    assert data.name == "data"
    assert [len(split) for split in data.splits.values()] == [42, 6, 12]
    assert data.classes == ("0", "1", "2")


def test_given_parts_are_kept(tmp_path: Path) -> None:
    path = saved(
        tmp_path, x_train=X[:40], y_train=Y[:40], x_val=X[40:50], y_val=Y[40:50],
        x_test=X[50:], y_test=Y[50:],
    )  # fmt: skip
    data = load(path)
    assert np.array_equal(data.train.x.numpy(), X[:40])
    assert np.array_equal(data.validation.x.numpy(), X[40:50])
    assert np.array_equal(data.test.x.numpy(), X[50:])


def test_validation_is_taken_from_train_and_never_from_test(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x_train=X[:40], y_train=Y[:40], x_test=X[40:], y_test=Y[40:]))
    assert np.array_equal(data.test.x.numpy(), X[40:])
    assert len(data.train) + len(data.validation) == 40


def test_grey_images_get_a_channel_and_bytes_are_scaled(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=np.full((60, 5, 6), 51, dtype=np.uint8), y=Y))
    assert data.input_shape == (1, 5, 6)
    assert bool((data.train.x == torch.tensor(0.2)).all())


def test_vectors_with_float_targets_are_a_regression(tmp_path: Path) -> None:
    data = load(saved(tmp_path, x=X.reshape(60, -1), y=Y.astype(float)[:, None]))
    assert data.task == "regression"
    assert data.standardisation is not None


def test_labels_may_be_names_or_any_numbers(tmp_path: Path) -> None:
    assert load(saved(tmp_path, x=X, y=np.array(["b", "a"])[Y % 2])).classes == ("a", "b")
    data = load(saved(tmp_path, x=X, y=Y + 5))
    assert data.classes == ("5", "6", "7")
    assert set(data.train.y.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": X}, "should hold arrays x and y, or x_train and y_train; got a"),
        ({"x_test": X, "y_test": Y}, "or x_train and y_train"),
        ({"x": X, "y": Y[:50]}, r"y should be \(60,\), .* got \(50,\)"),
        ({"x": X.transpose(0, 2, 3, 1), "y": Y}, r"transpose\(0, 3, 1, 2\)"),
        ({"x": X[:, 0, 0, 0], "y": Y}, r"images \(N, C, H, W\)"),
        ({"x": X * 2, "y": Y}, r"values in \[0, 1\]"),
        ({"x": (X * 255).astype(int), "y": Y}, "divide bytes by 255"),
        ({"x": X, "y": np.eye(3)[Y]}, r"one-hot\? y.argmax"),
        ({"x": X, "y": np.zeros(60, int)}, "at least two classes"),
        ({"x": X.astype(str), "y": Y}, "x should be numbers"),
        ({"x": X.astype(complex), "y": Y}, "x should be numbers"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, "no example of 3"),
    ],
)
def test_bad_arrays_are_refused(arrays: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        load(saved(tmp_path, **arrays))


def test_truncated_file_and_pickles_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"data.npz is truncated, is no .npz file"):
        load(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(ValueError, match=r"is no .npz file"):
        load(path)
    np.savez(path, x=np.array([{}], dtype=object), y=Y)
    with pytest.raises(ValueError, match="pickled objects"):
        load(path)


def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros pack to a thousandth of their size, and would fill the memory."""
    monkeypatch.setattr("taser.data._load.LARGEST", 2**20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2**16, 100)), y=np.zeros(2**16))
    with pytest.raises(ValueError, match=r"bomb\.npz .*it unpacks to 52,\d+,\d+ bytes"):
        load(tmp_path / "bomb.npz")
