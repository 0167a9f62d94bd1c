"""Errors that give the nearest right name."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, given: str, names: Iterable[str]) -> ValueError:
    """The error for a name that is none of `names`.

    >>> raise unknown("fruit", "aple", ["apple", "pear"])
    Traceback (most recent call last):
    ValueError: there is no fruit called 'aple'; did you mean 'apple'? There are apple, pear
    """
    lower = {name.lower(): name for name in names}
    near = get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[near[0]]!r}? " if near else ""
    there = f"There are {', '.join(lower.values())}" if lower else "There are none"
    return ValueError(f"there is no {what} called {given!r}; {hint}{there}")
