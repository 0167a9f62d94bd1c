import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taser.data import load

RNG = np.random.default_rng(0)


def picture(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def grey(shape: tuple[int, int] = (6, 5)) -> np.ndarray:
    return RNG.integers(256, size=shape, dtype=np.uint8)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        for k in range(20):
            picture(tmp_path / "pets" / name / f"{k:02}.png", grey())
    return tmp_path / "pets"


def test_grey_images_by_class(pets: Path) -> None:
    data = load(pets)
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert data.input_shape == (1, 6, 5)
    assert [len(split) for split in data.splits.values()] == [28, 4, 8]


def test_pixels_and_labels_are_those_of_the_files(pets: Path) -> None:
    data = load(pets)
    stored = {
        np.asarray(Image.open(file)).tobytes(): data.classes.index(file.parent.name)
        for file in pets.glob("*/*.png")
        if data.classes
    }
    for split in data.splits.values():
        for image, label in zip(split.x, split.y, strict=True):
            assert stored[(image[0] * 255).round().byte().numpy().tobytes()] == int(label)


def test_one_colour_image_makes_all_of_them_colour(pets: Path) -> None:
    picture(pets / "cat" / "colour.png", RNG.integers(256, size=(6, 5, 3), dtype=np.uint8))
    assert load(pets).input_shape == (3, 6, 5)


def test_given_parts_are_kept(tmp_path: Path) -> None:
    for part, count in (("train", 10), ("val", 3), ("test", 2)):
        for name in "ab":
            for k in range(count):
                picture(tmp_path / part / name / f"{k}.png", grey())
    assert [len(split) for split in load(tmp_path).splits.values()] == [20, 6, 4]


def test_other_files_are_passed_over(pets: Path) -> None:
    before = load(pets).hash
    (pets / "cat" / "notes.txt").write_text("hello")
    (pets / "cat" / ".hidden.png").write_text("hello")
    (pets / ".git").mkdir()
    (pets / "readme.md").write_text("hello")
    assert load(pets).hash == before


def test_sizes_that_differ_need_a_size(pets: Path) -> None:
    picture(pets / "dog" / "large.png", grey((12, 16)))
    with pytest.raises(ValueError, match=r"of one size, .* given: .* is 5×6, .* is 16×12"):
        load(pets)
    assert load(pets, size=4).input_shape == (1, 4, 4)
    assert load(pets, size=(4, 6)).input_shape == (1, 4, 6)


def test_resizing_keeps_the_middle_and_the_shape_of_things(tmp_path: Path) -> None:
    """A white square in a wide black picture fills the result, and the sides are cut off."""
    wide = np.zeros((8, 32), dtype=np.uint8)
    wide[:, 12:20] = 255
    for name in "ab":
        for k in range(10):
            picture(tmp_path / name / f"{k}.png", wide)
    x = load(tmp_path, size=4).train.x
    assert bool((x[..., 1:3] == 1).all())
    assert bool((x > 0.9).all())  # at the rim the filter sees a little of what was cut off


@pytest.mark.parametrize("size", [0, (4, 0), (4, 4, 4)])
def test_bad_size_is_refused(pets: Path, size: object) -> None:
    with pytest.raises(ValueError, match="size should be"):
        load(pets, size=size)  # type: ignore[arg-type]


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least two of them; got 0"):
        load(tmp_path)


def test_class_without_images_is_refused(pets: Path) -> None:
    (pets / "bird").mkdir()
    with pytest.raises(ValueError, match="no images in the class folder bird of"):
        load(pets)


def test_class_that_only_the_test_part_has_is_refused(tmp_path: Path) -> None:
    for part, names in (("train", "ab"), ("test", "abc")):
        for name in names:
            picture(tmp_path / part / name / "0.png", grey())
    with pytest.raises(ValueError, match=r"classes that .*train lacks: c"):
        load(tmp_path)


def test_truncated_image_is_refused_by_name(pets: Path) -> None:
    file = pets / "dog" / "03.png"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"03.png is truncated or no image that can be read"):
        load(pets)


def test_sixteen_bits_are_refused(pets: Path) -> None:
    picture(pets / "dog" / "deep.png", grey().astype(np.uint16) * 257)
    with pytest.raises(ValueError, match=r"deep.png has more than eight bits"):
        load(pets)


def test_table_options_are_refused(pets: Path) -> None:
    with pytest.raises(ValueError, match="a folder of images takes no target"):
        load(pets, target="y")


def test_a_named_pipe_is_refused_at_once(pets: Path, tmp_path: Path) -> None:
    """Its end would never come."""
    os.mkfifo(pets / "cat" / "pipe.png")
    with pytest.raises(ValueError, match=r"pipe\.png is no regular file"):
        load(pets)
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(ValueError, match=r"table\.csv is no regular file"):
        load(tmp_path / "table.csv", target="y")


def test_an_image_of_too_many_pixels_is_refused(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match=r"00\.png is truncated or no image .* bomb"):
        load(pets)
