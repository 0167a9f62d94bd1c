"""Errors that give the nearest right name."""

from collections.abc import Iterable
from difflib import get_close_matches


def hint(given: object, names: Iterable[object]) -> str:
    """What to append to a wrong name: the nearest right one, if any is near.

    >>> hint("aple", ["apple", "pear"])
    " (did you mean 'apple'?)"
    """
    known = {plain(name): name for name in names}
    near = get_close_matches(plain(given), known, n=1, cutoff=0.5)
    return f" (did you mean {known[near[0]]!r}?)" if near else ""


def unknown(what: str, given: str, names: Iterable[str]) -> ValueError:
    """The error for a name that is none of `names`.

    >>> raise unknown("fruit", "aple", ["apple", "pear"])
    Traceback (most recent call last):
    ValueError: there is no fruit called 'aple' (did you mean 'apple'?); there are apple, pear
    """
    names = list(names)
    there = ", ".join(names) or "none"
    return ValueError(f"there is no {what} called {given!r}{hint(given, names)}; there are {there}")


def plain(name: object) -> str:
    """A name without capitals, hyphens and underscores."""
    return str(name).lower().replace("-", "").replace("_", "")
