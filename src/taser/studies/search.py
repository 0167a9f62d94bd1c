"""Settings chosen on the validation split: a plain grid of short runs, equally many for all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Candidates = list[list[str]]
"""Settings to try, each a list of overrides."""


@dataclass(frozen=True)
class Search:
    """Which settings are tried, how short, and by what one is taken.

    candidates
        By variant, a list of lists of overrides, one short run each, or such a list by method.
        What "off" finds, such as its learning rate, all variants take over. The others that are
        named get equally many.
    overrides
        What makes the runs short.
    shared
        By method, the method whose findings it takes instead of runs of its own.
    clean_cost
        By method, how much clean accuracy on the validation split a variant may lose against "off"
        for the candidate with the highest robust accuracy to be taken.
    """

    candidates: dict[str, Candidates | dict[str, Candidates]]
    overrides: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    clean_cost: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lists = isinstance(self.candidates, dict) and all(
            isinstance(tried, list) and all(_overrides(one) for one in tried)
            for tried in self._lists()
        )
        if not lists:
            raise ValueError(
                "search.candidates should be lists of lists of overrides by variant, such as "
                f"{{'off': [[optimiser.rate=0.1]]}}, or by variant and method; got "
                f"{self.candidates!r}"
            )
        if not self.candidates.get("off"):
            raise ValueError("a search needs candidates of off, if only one that changes nothing")

    def _lists(self) -> Iterator[object]:
        for tried in self.candidates.values():
            yield from tried.values() if isinstance(tried, dict) else [tried]

    def of(self, variant: str, method: str) -> Candidates:
        """What is tried for a variant of a method that is searched; nothing if it is not named."""
        tried = self.candidates.get(variant, [])
        if not isinstance(tried, dict):
            return tried
        if method not in tried:
            raise ValueError(
                f"search.candidates of {variant} has lists for {', '.join(tried)}, but none for "
                f"{method}"
            )
        return tried[method]

    def check_fair(self, methods: Iterable[str]) -> None:
        """Raise unless, for each of these methods, all variants but "off" get equally many."""
        for method in self.sources(methods):
            if not self.of("off", method):
                raise ValueError(f"a search needs candidates of off, and for {method} it has none")
            sizes = {v: len(self.of(v, method)) for v in self.candidates if v != "off"}
            if len(set(sizes.values())) > 1:
                raise ValueError(
                    f"a fair search tries equally many settings of each variant; {method}: {sizes}"
                )

    def source(self, method: str) -> str:
        """The method that is searched for this one."""
        return self.shared.get(method, method)

    def sources(self, methods: Iterable[str]) -> list[str]:
        """The methods that are searched, for these."""
        return list(dict.fromkeys(self.source(method) for method in methods))


def _overrides(candidate: object) -> bool:
    return isinstance(candidate, list) and all(isinstance(one, str) for one in candidate)


Found = Mapping[str, Any]
"""A finished short run: {"clean": …, "robust": …} on the validation split, and its overrides."""


def best(found: Sequence[Found], *, floor: float = 0.0, measure: str = "robust") -> Found:
    """The highest `measure` among those with a clean accuracy of `floor` or more.

    If none has that, the highest clean accuracy.

    >>> runs = [{"clean": 0.9, "robust": 0.2}, {"clean": 0.8, "robust": 0.4}]
    >>> best(runs)["robust"], best(runs, floor=0.85)["robust"], best(runs, floor=0.95)["robust"]
    (0.4, 0.2, 0.2)
    """
    allowed = [run for run in found if run["clean"] >= floor]
    if not allowed:
        return max(found, key=lambda run: run["clean"])
    return max(allowed, key=lambda run: run[measure])
