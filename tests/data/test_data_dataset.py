import dataclasses

import pytest
import torch

from taser.data import Dataset, Split


def split(n: int = 6, **changes: torch.Tensor) -> Split:
    generator = torch.Generator().manual_seed(n)
    parts = {"x": torch.rand(n, 1, 4, 4, generator=generator), "y": torch.arange(n) % 3}
    merged = {**parts, **changes}
    return Split(merged["x"], merged["y"])


def dataset(**changes: object) -> Dataset:
    options = {
        "name": "toy", "train": split(6), "validation": split(3), "test": split(4),
        "classes": ("a", "b", "c"),
    }  # fmt: skip
    return Dataset(**{**options, **changes})


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (torch.rand(4, 3), torch.arange(5), r"y should be \(4,\)"),
        (torch.rand(4, 3), torch.arange(4).int(), "int64 label or float32 target"),
        (torch.zeros(4, 3, dtype=torch.uint8), torch.arange(4), "or images as uint8"),
        (torch.rand(4, 3).double(), torch.arange(4), "x should be float32"),
        (torch.rand(4, 8, 8), torch.arange(4), r"\(N, C, H, W\) or vectors"),
        (torch.rand(0, 3), torch.arange(0), "at least one example"),
        (torch.full((2, 1, 4, 4), 255.0), torch.arange(2), r"in \[0, 1\].*divide bytes by 255"),
        (torch.full((2, 1, 4, 4), -0.1), torch.arange(2), r"from -0.1 to -0.1"),
        (torch.full((2, 1, 4, 4), 1 + 2e-6), torch.arange(2), r"in \[0, 1\]"),
        (torch.full((2, 3), float("nan")), torch.arange(2), "finite"),
        (torch.full((2, 3), float("inf")), torch.arange(2), "finite"),
        (torch.zeros(2, 3), torch.tensor([0.0, float("nan")]), "y should be finite"),
    ],
)
def test_bad_examples_are_refused(x: torch.Tensor, y: torch.Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Split(x, y)


def test_rounding_beyond_one_is_allowed_and_vectors_have_no_bounds() -> None:
    Split(torch.full((2, 1, 4, 4), 1 + 5e-7), torch.arange(2))
    Split(torch.full((2, 3), 1e6), torch.arange(2))


def test_bytes_equal_the_floats_they_become() -> None:
    stored = torch.randint(256, (9, 3, 4, 4), dtype=torch.uint8)
    in_bytes = Split(stored, torch.arange(9))
    in_floats = Split(stored.float() / 255, torch.arange(9))
    index = torch.tensor([7, 0, 7])
    assert torch.equal(in_bytes.x, in_floats.x)
    assert torch.equal(in_bytes.rows(index), in_floats.x[index])
    assert in_bytes.hash == in_floats.hash
    assert in_bytes.shape == (3, 4, 4)


def test_hash_is_of_the_content() -> None:
    one = split()
    assert one.hash == split().hash
    assert one.hash != split(y=one.y.flip(0)).hash
    nudged = one.x.clone()
    nudged[-1, 0, -1, -1] = 0.5
    assert one.hash != split(x=nudged).hash
    # A frozen value: caches and records of other machines and years rely on it.
    constant = Split(torch.arange(8).view(2, 1, 2, 2) / 8, torch.tensor([0, 1]))
    assert constant.hash == ("2e898ca1d772b9d9b78bf25906bc21fc8f6325bb0f7d83365e0715d8dc0438c2")


def test_hash_of_a_dataset_covers_every_split() -> None:
    hashes = {dataset().hash, dataset(test=split(5)).hash, dataset(validation=split(5)).hash}
    assert len(hashes) == 3
    assert dataset().hash in hashes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"test": split(x=torch.rand(6, 1, 5, 5))}, "inputs of the test part of toy have shape"),
        ({"classes": ("a", "b")}, "int64 labels in 0…1"),
        ({"classes": None}, "float32 targets"),
        ({"test": split(y=torch.rand(6))}, "y of the test part of toy should be int64 labels"),
        ({"test": split(y=torch.arange(6) - 1)}, "from -1 to 4"),
    ],
)
def test_splits_that_do_not_fit_are_refused(changes: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dataset(**changes)


def test_what_a_dataset_says_of_itself() -> None:
    toy = dataset()
    assert toy.task == "classification"
    assert toy.input_shape == (1, 4, 4)
    assert list(toy.splits) == ["train", "validation", "test"]
    assert toy.to("cpu").hash == toy.hash
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy.name = "other"  # type: ignore[misc]
