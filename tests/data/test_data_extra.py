"""Extra labelled images in every batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import taser
from taser.data import Batches, Split
from taser.data._load import read_extra
from taser.training import read_recipe, train


def splits() -> tuple[Split, Split]:
    """Twenty images of value 0.25 and five of 0.75, with labels 0 and 1."""
    own = Split(torch.full((20, 1, 4, 4), 0.25), torch.zeros(20, dtype=torch.long))
    return own, Split(torch.full((5, 1, 4, 4), 0.75), torch.ones(5, dtype=torch.long))


def test_each_batch_has_its_share_and_an_epoch_its_length() -> None:
    own, extra = splits()
    batches = Batches(own, 10, extra=extra, extra_share=0.7)
    assert len(batches) == 2
    orders = set()
    for x, y, index in batches:
        assert int(y.sum()) == 7
        assert torch.equal(x[:, 0, 0, 0] > 0.5, y == 1)
        assert torch.equal(index >= 20, y == 1)
        assert int(index.max()) < 25
        orders.add(tuple(y.tolist()))
    assert len(orders) == 2  # mixed, and differently each time


def test_all_extra_images_are_drawn_in_the_long_run() -> None:
    own, extra = splits()
    batches = Batches(own, 10, extra=extra)
    seen = torch.cat([batch.index for _ in range(10) for batch in batches])
    counts = torch.bincount(seen[seen >= 20] - 20, minlength=5)
    assert counts.sum() == 140
    assert bool((abs(counts - 28) < 4 * (140 * 0.2 * 0.8) ** 0.5).all())  # four deviations


def test_a_saved_state_goes_on_with_the_same_extra_images_alone() -> None:
    own, extra = splits()
    whole = [batch.index for batch in Batches(own, 5, extra=extra)]
    first = Batches(own, 5, extra=extra)
    next(iter(first))
    again = Batches(own, 5, extra=extra)
    again.load_state_dict(first.state_dict())
    assert all(map(torch.equal, whole[1:], [batch.index for batch in again]))
    for other in (
        Batches(own, 5),
        Batches(own, 5, extra=own),
        Batches(own, 5, extra=extra, extra_share=0.5),
    ):
        with pytest.raises(ValueError, match="batches with extra="):
            other.load_state_dict(first.state_dict())


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_the_published_layout_and_our_own_are_read(tmp_path: Path) -> None:
    digits = taser.data.load("digits")
    rng = np.random.default_rng(0)
    pixels, label = rng.integers(256, size=(6, 8, 8, 1), dtype=np.uint8), np.arange(6)
    published = read_extra(write(tmp_path / "a.npz", image=pixels, label=label), digits)
    own = read_extra(
        write(tmp_path / "b.npz", x=pixels.transpose(0, 3, 1, 2) / 255, y=label), digits
    )
    assert published.stored.dtype == torch.uint8
    torch.testing.assert_close(published.x, own.x)
    assert torch.equal(published.y, own.y)


GOOD = {"image": np.zeros((4, 8, 8, 1), np.uint8), "label": np.arange(4)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": np.arange(4) + 7}, r"labels in 0…9.*from 7 to 10"),
        ({"label": np.full(4, -1)}, r"labels in 0…9"),
        ({"label": np.ones((4, 10)) / 10}, "label .class numbers.*label of float64"),
        ({"label": np.arange(3)}, r"one int64 label"),
        ({"image": np.zeros((4, 28, 28, 1), np.uint8)}, r"have shape .1, 28, 28., the training"),
        ({"image": np.zeros((4, 8, 8), np.uint8)}, "float32 images"),
        ({"image": np.full((4, 8, 8, 1), 3.0)}, r"values in .0, 1.; got"),
        ({"image": np.full((4, 8, 8, 1), np.nan)}, "should be finite"),
        (
            {"image": np.zeros((0, 8, 8, 1), np.uint8), "label": np.arange(0)},
            "at least one example",
        ),
    ],
)
def test_other_images_are_refused(tmp_path: Path, change: dict, says: str) -> None:
    path = write(tmp_path / "extra.npz", **{**GOOD, **change})
    with pytest.raises(ValueError, match=says) as caught:
        read_extra(path, taser.data.load("digits"))
    assert str(path) in str(caught.value)


def test_data_without_images_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "extra.npz", **GOOD)
    with pytest.raises(ValueError, match=r"data\.extra is for images with classes; diabetes"):
        read_extra(path, taser.data.load("diabetes"))
    with pytest.raises(ValueError, match="should hold image and label"):
        read_extra(write(tmp_path / "b.npz", image=GOOD["image"]), taser.data.load("digits"))
    with pytest.raises(FileNotFoundError, match="there is no file at"):
        read_extra(tmp_path / "none.npz", taser.data.load("digits"))


def test_a_run_with_extra_images_taser_and_averaged_weights(tmp_path: Path) -> None:
    """Resumed in the middle of an epoch, to the bit."""
    digits = taser.data.load("digits").train
    path = write(tmp_path / "extra.npz", x=digits.x[:50].numpy(), y=digits.y[:50].numpy())
    config = read_recipe("digits/standard", [
        f"data.extra={path}", "data.extra_share=0.5", "data.examples=96", "model.width=4",
        "loop.batch=32", "loop.epochs=2", "loop.ema=0.9", "loop.save_minutes=0",
        "regulariser.name=taser", "validation.examples=20", "validation.steps=1",
    ])  # fmt: skip

    def stop(done: int, _total: int, _label: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "resumed", report=stop)
    train(config, tmp_path / "resumed")
    found: list[Tensor | bytes] = [
        (tmp_path / name / "last.safetensors").read_bytes() for name in ("whole", "resumed")
    ]
    assert found[0] == found[1]
