"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017)."""

from .known import Fetchable
from .sources import IDX, PARQUET_IMAGES, Apt, Https

FASHION_MNIST = Fetchable(
    name="fashion-mnist",
    summary="70,000 articles of clothing, 28×28 grey, ten classes",
    classes=(
        "T-shirt/top", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    sha256="3d95741f1d79ac70c79a7a8821e9df28a19ae0f6b7e3693152d60c5aeef12059",
    layouts=(IDX, PARQUET_IMAGES),
    transports=(
        # The authors' repository at one commit: their own server does not speak https.
        Https(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
            {
                "train-images-idx3-ubyte.gz": (
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
                ),
                "train-labels-idx1-ubyte.gz": (
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
                ),
            },
        ),
        Apt("dataset-fashion-mnist"),
    ),
)  # fmt: skip
