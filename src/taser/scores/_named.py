"""A score by name: a file, a diffusion model, or a function of the user's."""

from importlib.resources import as_file, files
from inspect import signature
from pathlib import Path

from taser._names import import_callable

from ._adapters import ffdnet, from_diffusers
from ._denoiser import Denoiser
from ._score import DenoisingScore

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


def named(spec: str | Path) -> Denoiser | DenoisingScore:
    """What `spec` names; its score at a noise level is `.at(timestep=50)` or `.at(sigma=0.088)`.

    spec
        A file written by `taser score fit`; a shipped one ("cifar10"); "ffdnet", the score of
        photographs; "diffusers:" and the folder or hub name of a diffusion model; or a function of
        yours that returns a score at some noise level, as :func:`from_edm` and
        :func:`from_diffusers` do: "package.module:function" or "path/to/file.py:function". **The
        latter two run the code in that module or file**, so name only what you trust.

    >>> named("digits").at(timestep=50)
    DenoisingScore(sigma=0.0880048, by Denoiser, 0.14 M parameters)
    """
    spec = str(spec)
    if spec.startswith("diffusers:"):
        return from_diffusers(spec.removeprefix("diffusers:"))
    path = Path(spec).expanduser()
    if ":" not in spec:
        if spec == "ffdnet" and not path.is_file():
            return ffdnet()
        if spec in SHIPPED and not path.is_file():
            return pretrained(spec)
        if path.suffix == ".py":
            raise ValueError(f"which function in the file? Write {spec + ':function'!r}")
        if path.is_dir():
            raise ValueError(f"{spec} is a folder; for a diffusers model write 'diffusers:{spec}'")
        if not path.exists():
            raise FileNotFoundError(
                f"there is no score at {spec}: a file of `taser score fit`, a shipped one "
                f"({', '.join(SHIPPED)}), ffdnet, diffusers:NAME or file.py:function is needed"
            )
        return Denoiser.load(path)
    build = import_callable(spec)
    try:
        signature(build).bind()
    except TypeError as error:
        raise ValueError(f"{spec} cannot be called without arguments: {error}") from error
    score = build()
    if not isinstance(score, Denoiser | DenoisingScore):
        raise ValueError(
            f"{spec} should return a score with a noise level, as taser.scores.from_edm and "
            f"from_diffusers do; got {type(score).__name__}"
        )
    return score
