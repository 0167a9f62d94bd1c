"""A table as users write it: YAML."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from taser._names import hint
from taser.attacks import Threat, fraction
from taser.attacks._named import NAMES
from taser.attacks._threat import shown
from taser.training import read_recipe
from taser.training._recipes import find_recipe

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


METHODS = ("standard", "pgd", "trades", "mart", "trades-awp", "mart-awp")
THREAT = {"norm", "epsilon"}  # the keys of a threat


@dataclass(frozen=True)
class TableConfig:
    """Methods × variants × seeds; "off" is the variant that the others are compared with.

    recipe
        The family: runs are of the recipes <recipe>/<method>.
    variants
        By name, the overrides that make it: {"off": [], "taser": ["regulariser.name=taser", …]}.
        Per method, `tuned` adds more: {"taser": {"pgd": ["regulariser.weight=0.1"]}}.
    scratch
        The variants that are trained from scratch, "off" among them; by default all.
    finetune
        Overrides of fine-tuning: each variant starts from the best weights of the method's "off"
        run, and the variant "off" itself is trained on for as long, as a fair control.
    search
        Settings to be chosen on the validation split before anything else.
    n, epsilon, norm, attacks
        Of the evaluation, on the same n test examples for all. {"spsa": 100} as `fewer` tries an
        attack on fewer of them, where it is too slow for all.
    unseen
        Threats that training did not know, such as [{"norm": "l2", "epsilon": 0.6}]: every run is
        judged under them as well, by the attacks that are tried on all n. They may be added to a
        study whose runs are finished, while the weights are there.
    audited
        How many test examples the runs of the variant "taser" are audited on, or twice as many
        and so on while too few are right; none by default.
    """

    recipe: str = "digits"
    methods: tuple[str, ...] = METHODS
    variants: dict[str, list[str]] = field(
        default_factory=lambda: {"off": [], "taser": ["regulariser.name=taser"]}
    )
    tuned: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    scratch: tuple[str, ...] | None = None
    finetune: list[str] | None = None
    search: Search | None = None
    seeds: tuple[int, ...] = (0,)
    n: int = 1000
    epsilon: float = 8 / 255
    norm: str = "linf"
    attacks: tuple[str, ...] = ("autoattack", "spsa")
    fewer: dict[str, int] = field(default_factory=dict)
    unseen: list[dict[str, Any]] = field(default_factory=list)
    audited: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", fraction(self.epsilon))
        for name in ("methods", "seeds", "attacks"):
            object.__setattr__(self, name, tuple(_listed(name, getattr(self, name))))
        for name, overrides in self.variants.items():
            _listed(f"variants: {name}", overrides)
        if "off" not in self.variants or "off" not in (self.scratch or ("off",)):
            raise ValueError(
                'variants need one called off (in YAML in quotes, "off"), which the others are '
                "compared with"
            )
        self._check_evaluation()
        if isinstance(self.search, dict):
            check_keys("search", self.search, Search)
            object.__setattr__(self, "search", Search(**self.search))
        tried = self.search.candidates if self.search else ()
        named = {"tuned": self.tuned, "scratch": self.scratch or (), "search": tried}
        for key, variants in named.items():
            if unknown := [v for v in variants if v not in self.variants]:
                known = ", ".join(self.variants)
                raise ValueError(f"{key} names {unknown[0]!r}, which is no variant: {known}")
        if self.search is not None:
            self.search.check_fair(self.methods)

    def _check_evaluation(self) -> None:
        """What every run would otherwise fail by after its training."""
        Threat(self.norm, self.epsilon)  # type: ignore[arg-type]
        for attack in (*self.attacks, *self.fewer):
            if attack not in NAMES:
                raise ValueError(f"there is no attack {attack!r}: {', '.join(NAMES)}")
        for name, count in {"n": self.n, **self.fewer}.items():
            if count < 1:
                raise ValueError(f"{name} should be at least 1 example; got {count}")
        for threat in _listed("unseen", self.unseen):
            if not isinstance(threat, dict) or "epsilon" not in threat or set(threat) - THREAT:
                raise ValueError(
                    f"unseen needs threats such as {{norm: l2, epsilon: 0.6}}; got {threat}"
                )
            Threat(**threat)
        if self.unseen and not set(self.attacks) - set(self.fewer):
            raise ValueError("unseen needs an attack that is tried on all n examples")

    def check_runs(self) -> None:
        """Read the recipe of every run with its overrides, so that a mistake is told at once."""
        jobs = [job for job in self.jobs().values() if "recipe" in job]
        for job in jobs:
            read_recipe(job["recipe"], [*job["overrides"], *job.get("candidate", [])])
        searched = _keys(chain.from_iterable(job.get("candidate", []) for job in jobs))
        tuned = chain.from_iterable(by_method.values() for by_method in self.tuned.values())
        if both := searched & _keys([*(self.finetune or []), *chain.from_iterable(tuned)]):
            raise ValueError(
                f"{min(both)} is searched for, and set by finetune or tuned: leave out one of them"
            )

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every run, by a name whose order is that of the work, but for what waits for others."""
        found: dict[str, dict[str, Any]] = {}
        for name, job in self._jobs():
            if name in found:
                raise ValueError(f"two runs would be called {name}: give variants other names")
            found[name] = job
        return found

    def _jobs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self.search is not None:
            for method in self.search.sources(self.methods):
                yield from self._searches(self.search, method)
        for seed in self.seeds:
            for method in self.methods:
                for variant in self.variants:
                    if self.scratch is None or variant in self.scratch:
                        run = self._run(method, variant, seed)
                        yield from self._judged_too(job_name(method, variant, seed), run)
                if self.finetune is not None:
                    start = {"start": job_name(method, "off", seed)}
                    for variant in self.variants:
                        run = {**self._run(method, variant, seed, self.finetune), **start}
                        name = job_name(method, variant, seed, "3-tune")
                        yield from self._judged_too(name, run)

    def _judged_too(self, name: str, run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """A run, and then its network under each threat that it was not trained for."""
        yield name, run
        attacks = {a: n for a, n in run["evaluation"]["attacks"].items() if a not in self.fewer}
        for asked in self.unseen:
            threat = Threat(**asked)
            evaluation = {
                "n": self.n, "epsilon": threat.epsilon, "norm": threat.norm, "attacks": attacks
            }  # fmt: skip
            short = f"{threat.norm}-{shown(threat.epsilon).replace('/', '_')}"
            yield f"{name}-{short}", {"judged": name, "evaluation": evaluation}

    def _searches(self, search: Search, method: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The short runs for one method; those of a variant begin when "off" has its settings."""
        for variant in search.candidates:
            for number, candidate in enumerate(search.of(variant, method)):
                yield (
                    f"{job_name(method, variant, 0, '1-search')}-{number}",
                    {
                        **self._job(method, variant, 0, search.overrides),
                        "candidate": candidate,
                        "choices": self._choices(method, "off") if variant != "off" else [],
                    },
                )

    def _choices(self, method: str, variant: str) -> list[dict[str, Any]]:
        """Which searches a run waits for, and how their winners are taken."""
        if self.search is None:
            return []
        source = self.search.source(method)
        cost = self.search.clean_cost.get(source)
        found = []
        for name in dict.fromkeys(("off", variant)):
            tried = range(len(self.search.of(name, source)))
            if tried:
                found.append({
                    "among": [f"{job_name(source, name, 0, '1-search')}-{i}" for i in tried],
                    "measure": "clean" if source == "standard" and name == "off" else "robust",
                    "clean_cost": None if name == "off" else cost,
                })  # fmt: skip
        return found

    def _run(
        self, method: str, variant: str, seed: int, more: list[str] | None = None
    ) -> dict[str, Any]:
        """A run of the table itself, with its evaluation."""
        judged = {
            "n": self.n, "epsilon": self.epsilon, "norm": self.norm,
            "attacks": {attack: self.fewer.get(attack, self.n) for attack in self.attacks},
        }  # fmt: skip
        return {
            **self._job(method, variant, seed, more or []),
            "finetuned": more is not None, "evaluation": judged,
            "audited": self.audited if variant == "taser" else 0,
            "choices": self._choices(method, variant),
        }  # fmt: skip

    def _job(self, method: str, variant: str, seed: int, more: list[str]) -> dict[str, Any]:
        tuned = self.tuned.get(variant, {}).get(method, [])
        overrides = [*self.overrides, *more, *self.variants[variant], *tuned]
        return {
            "method": method, "variant": variant, "seed": seed,
            "recipe": f"{self.recipe}/{method}", "overrides": [*overrides, f"loop.seed={seed}"],
        }  # fmt: skip


def job_name(method: str, variant: str, seed: int, kind: str = "2-train") -> str:
    """A folder's name: seeds first, then searches, runs from scratch, fine-tuning; then methods."""
    order = METHODS.index(method) if method in METHODS else len(METHODS)
    plain = re.sub(r"[^\w.=-]+", "_", variant.replace("λ", "lambda"), flags=re.ASCII)
    return f"{seed}-{kind}-{order}-{method}-{plain}"


def _keys(overrides: Iterable[str]) -> set[str]:
    return {override.partition("=")[0] for override in overrides}


def _listed(name: str, given: object) -> Iterable[Any]:
    if not isinstance(given, list | tuple):
        raise ValueError(f"{name} should be a list, such as [{given}]; got {given!r}")
    return given


def check_keys(where: str, content: Any, kind: type) -> None:
    """Raise unless `content` has only keys that the dataclass `kind` knows."""
    known = {field.name for field in fields(kind)}
    if not isinstance(content, dict):
        raise ValueError(f"{where} should have the keys {', '.join(sorted(known))}; got {content}")
    if wrong := sorted(set(map(str, content)) - known):
        raise ValueError(
            f"{where}: there is no {', '.join(wrong)}{hint(wrong[0], known)}; the keys are "
            f"{', '.join(sorted(known))}"
        )


def read_table_config(name: Path | str) -> TableConfig:
    """A table's YAML, such as the shipped studies/digits; unknown keys are refused."""
    try:
        content = yaml.safe_load(find_recipe(name).read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is no YAML: {error}") from None
    if isinstance(content, dict) and ("loop" in content or "extends" in content):
        raise ValueError(f"{name} is the recipe of a run: `taser train --recipe {name}`")
    check_keys(str(name), content, TableConfig)
    table = TableConfig(**content)
    table.check_runs()
    return table
