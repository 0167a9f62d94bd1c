"""Progress callback."""

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and what is being done now."""


def no_progress(_done: int, _total: int, _label: str, /) -> None:
    """The callback of whoever does not want to know."""
