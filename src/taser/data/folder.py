"""A folder of images, one folder for each class."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .parts import Examples, Parts

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
)
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")  # others may start a program
GREY = frozenset(("1", "L"))
DEEP = frozenset(("I", "I;16", "I;16B", "I;16L", "F"))  # more than eight bits for a channel
PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


def read_folder(path: Path, *, size: int | tuple[int, int] | None = None) -> Parts:
    """Images at path/class/*, or at path/train/class/*, path/test/class/* and so on.

    size: (H, W), or one number for both: images are cut to that shape about their centre and
    resized. Without it they all have to be of one size. Grey if all are grey, otherwise RGB.
    """
    roots = {
        part: path / name
        for part, names in PARTS.items()
        for name in names
        if (path / name).is_dir()
    }
    if "train" not in roots:
        roots = {"train": path}
    files = {part: _files(root) for part, root in roots.items()}
    classes = tuple(files["train"])
    for part, by_class in files.items():
        if strange := sorted(set(by_class) - set(classes)):
            raise ValueError(
                f"{roots[part]} has folders of classes that {roots['train']} lacks: "
                f"{', '.join(strange)}"
            )
    every = [file for by_class in files.values() for group in by_class.values() for file in group]
    grey, shape = _common_form(every, size)
    parts = {part: _examples(by_class, classes, grey, shape) for part, by_class in files.items()}
    return Parts(parts["train"], parts.get("validation"), parts.get("test"), classes)


def _files(root: Path) -> dict[str, list[Path]]:
    """The images of each class, both in the order of their names."""
    folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
    if len(folders) < 2:
        raise ValueError(
            f"{root} should hold one folder of images for each class, and at least two of them; "
            f"got {len(folders)}"
        )
    files = {
        folder.name: sorted(
            file for file in folder.iterdir()
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
        )
        for folder in folders
    }  # fmt: skip
    if empty := [name for name, group in files.items() if not group]:
        raise ValueError(
            f"no images in the class folder{'s' * (len(empty) > 1)} {', '.join(empty)} of {root}; "
            f"wanted files ending in {', '.join(sorted(SUFFIXES))}"
        )
    return files


def _common_form(
    files: list[Path], size: int | tuple[int, int] | None
) -> tuple[bool, tuple[int, int]]:
    """Whether all are grey, and (H, W); from the headers, so before the long part of the work."""
    if size is not None:
        shape = (size, size) if isinstance(size, int) else size
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(f"size should be (H, W) or one number, at least 1; got {size}")
    grey, first = True, None
    for file in files:
        with _opened(file) as image:
            if image.mode in DEEP:
                raise ValueError(
                    f"{file} has more than eight bits a channel (mode {image.mode}); convert it to "
                    "eight, since how to scale it to [0, 1] is not known"
                )
            grey = grey and image.mode in GREY
            first = first or image.size
            if size is None and image.size != first:
                raise ValueError(
                    "the images should be of one size, or size= (data.size in a recipe) be given: "
                    f"{files[0]} is {first[0]}×{first[1]}, {file} is "
                    f"{image.size[0]}×{image.size[1]}"
                )
    assert first is not None  # every class has an image
    return grey, (first[1], first[0]) if size is None else shape


def _examples(
    by_class: dict[str, list[Path]], classes: tuple[str, ...], grey: bool, shape: tuple[int, int]
) -> Examples:
    files = [(file, classes.index(name)) for name, group in by_class.items() for file in group]
    x = np.empty((len(files), 1 if grey else 3, *shape), dtype=np.uint8)
    for row, (file, _) in zip(x, files, strict=True):
        with _opened(file) as image:
            image = image.convert("L" if grey else "RGB")
            if image.size != (shape[1], shape[0]):
                image = ImageOps.fit(image, (shape[1], shape[0]), Image.Resampling.BICUBIC)
            pixels = np.asarray(image)
        row[:] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return Examples(x, np.array([label for _, label in files]))


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except (OSError, SyntaxError) as error:
        raise ValueError(
            f"{file} is no image that can be read, or is truncated: {error}"
        ) from error
