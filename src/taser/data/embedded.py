"""The data sets that ship inside scikit-learn."""

from importlib import import_module
from typing import Any

import numpy as np

from .known import Embedded
from .parts import Examples, Parts


def _datasets() -> Any:
    # Not at the top: scikit-learn takes as long to import as torch, and few commands need it.
    return import_module("sklearn.datasets")


def _digits() -> Parts:
    bunch = _datasets().load_digits()
    images = (bunch.images[:, None] / 16).astype(np.float32)  # counts of 0…16 in each 4×4 cell
    return Parts(Examples(images, bunch.target), classes=tuple(map(str, bunch.target_names)))


def _breast_cancer() -> Parts:
    bunch = _datasets().load_breast_cancer()
    return Parts(
        Examples(bunch.data, bunch.target),
        classes=tuple(map(str, bunch.target_names)),
        columns=tuple(map(str, bunch.feature_names)),
    )


def _diabetes() -> Parts:
    # Raw units: the scaled ones were scaled by all examples, the test part among them.
    bunch = _datasets().load_diabetes(scaled=False)
    return Parts(Examples(bunch.data, bunch.target), columns=tuple(map(str, bunch.feature_names)))


DIGITS = Embedded("digits", "1,797 handwritten digits, 8×8 grey; needs no fetching", _digits)
BREAST_CANCER = Embedded(
    "breast-cancer", "569 tumours, 30 features, benign or malignant", _breast_cancer
)
DIABETES = Embedded(
    "diabetes", "442 patients, 10 features, the disease's progress (regression)", _diabetes
)
