"""Small denoisers that ship with the package."""

from importlib.resources import as_file, files

from .denoiser import Denoiser

SHIPPED = ("digits", "cifar10", "fashion-mnist")
"""Made by the commands in weights/README.md."""


def pretrained(name: str) -> Denoiser:
    """A denoiser trained on the training part of the data set `name`, one of SHIPPED.

    >>> round(pretrained("digits").at(timestep=50).sigma, 3)
    0.088
    """
    if name not in SHIPPED:
        raise ValueError(
            f"denoisers ship for {', '.join(SHIPPED)}; got {name!r}. Fit one with `taser score fit`"
        )
    with as_file(files("taser.scores") / "weights" / f"{name}.safetensors") as path:
        return Denoiser.load(path)
