"""Where data sets come from: ways to bring their files here, and ways to read them."""

from .apt import Apt
from .cifar_batches import CIFAR_BATCHES
from .errors import FetchError
from .https import Https
from .idx import IDX
from .image_rows import IMAGE_ROWS
from .layout import Layout, read_layouts
from .npm import Npm
from .parquet_images import PARQUET_IMAGES
from .transport import Progress, Transport

__all__ = [
    "CIFAR_BATCHES",
    "IDX",
    "IMAGE_ROWS",
    "PARQUET_IMAGES",
    "Apt",
    "FetchError",
    "Https",
    "Layout",
    "Npm",
    "Progress",
    "Transport",
    "read_layouts",
]
