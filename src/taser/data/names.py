"""The data sets that have a name."""

from difflib import get_close_matches

from .cifar10 import CIFAR10
from .embedded import BREAST_CANCER, DIABETES, DIGITS
from .fashion_mnist import FASHION_MNIST
from .known import Known
from .mnist import MNIST

KNOWN: tuple[Known, ...] = (DIGITS, MNIST, FASHION_MNIST, CIFAR10, BREAST_CANCER, DIABETES)


def find(name: str) -> Known | None:
    """The data set of that name, with or without its capitals and hyphens; None if unknown."""
    return next((known for known in KNOWN if _plain(known.name) == _plain(name)), None)


def unknown(name: str) -> ValueError:
    """An error that gives the nearest right name."""
    plain = {_plain(known.name): known.name for known in KNOWN}
    near = get_close_matches(_plain(name), plain, n=1, cutoff=0.5)
    hint = f"did you mean {plain[near[0]]!r}? " if near else ""
    return ValueError(
        f"there is no data set called {name!r}; {hint}The names are "
        f"{', '.join(known.name for known in KNOWN)}"
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
