"""The data sets that have a name."""

from taser.nearest import plain, unknown

from .cifar10 import CIFAR10
from .embedded import BREAST_CANCER, DIABETES, DIGITS
from .fashion_mnist import FASHION_MNIST
from .known import Known
from .mnist import MNIST

KNOWN: tuple[Known, ...] = (DIGITS, MNIST, FASHION_MNIST, CIFAR10, BREAST_CANCER, DIABETES)


def find(name: str) -> Known | None:
    """The data set of that name, with or without its capitals and hyphens; None if unknown."""
    return next((known for known in KNOWN if plain(known.name) == plain(name)), None)


def unknown_data(name: str) -> ValueError:
    """An error that gives the nearest right name."""
    return unknown("data set", name, [known.name for known in KNOWN])
