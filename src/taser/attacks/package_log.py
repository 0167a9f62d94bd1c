"""What pyautoattack writes to its log, as warnings that an evaluation can keep."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from .protocol import AttackWarning

LOGGER = logging.getLogger("auto-attack")


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def log_as_warnings() -> Iterator[None]:
    """What the package logs as a warning becomes an AttackWarning, each message once."""
    kept = _Kept()
    propagate, LOGGER.propagate = LOGGER.propagate, False
    LOGGER.addHandler(kept)
    try:
        yield
    finally:
        LOGGER.removeHandler(kept)
        LOGGER.propagate = propagate
    for message in dict.fromkeys(kept.messages):
        warnings.warn(f"AutoAttack says: {message}", AttackWarning, stacklevel=3)
