"""What the numbers of a recipe may be."""

from math import inf


def check_positive(section: str, **counts: int) -> None:
    """Raise for a count below one."""
    for key, count in counts.items():
        if count < 1:
            raise ValueError(f"{section}.{key} should be at least 1; got {count}")


def check_not_negative(section: str, **values: float) -> None:
    """Raise for what is negative, infinite or NaN."""
    for key, value in values.items():
        if not 0 <= value < inf:
            raise ValueError(f"{section}.{key} should be zero or more; got {value}")


def check_shares(section: str, **shares: float) -> None:
    """Raise for what lies outside of [0, 1]."""
    for key, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{section}.{key} is a share, from 0 to 1; got {share}")
