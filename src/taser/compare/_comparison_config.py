"""What a comparison trains and evaluates: its configuration, read from YAML, and its runs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic.dataclasses import dataclass

from taser._names import hint
from taser._settings import SETTINGS, Count, Number, Whole, from_mapping
from taser.attacks import Threat
from taser.attacks._attack import shown
from taser.attacks._autoattack import NAMES
from taser.training import read_recipe
from taser.training._recipes import FOLDER, find_recipe, shipped_recipes

Job = dict[str, Any]
"""The settings of one run, as JSON."""
Candidates = list[list[str]]
"""Settings to try, each a list of overrides."""

METHODS = ("standard", "pgd", "trades", "mart", "trades-awp", "mart-awp")
THREAT = {"norm", "epsilon"}  # the keys of a threat


@dataclass(frozen=True, config=SETTINGS)
class Search:
    """Which settings are tried on the validation split, and how one of them is chosen.

    candidates
        By variant, a list of lists of overrides, one run each, or such a list by method.
        All variants take over what "off" finds, such as its learning rate. The other variants
        that are named get equally many candidates.
    overrides
        What makes the runs short.
    shared
        By method, the method whose findings it takes instead of a search of its own.
    clean_cost
        By method, how much clean accuracy on the validation split a variant may lose against "off"
        for the candidate with the highest robust accuracy to be chosen.
    """

    candidates: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    clean_cost: dict[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        valid = all(
            isinstance(tried, list) and all(_is_overrides(one) for one in tried)
            for tried in self._lists()
        )
        if not valid:
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
        """The candidates of a variant of a method; none if the variant is not named."""
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
        """The method whose search this one uses."""
        return self.shared.get(method, method)

    def sources(self, methods: Iterable[str]) -> list[str]:
        """The methods that are searched."""
        return list(dict.fromkeys(self.source(method) for method in methods))


def _is_overrides(candidate: object) -> bool:
    return isinstance(candidate, list) and all(isinstance(one, str) for one in candidate)


def best(
    runs: Sequence[Mapping[str, Any]], *, floor: float = 0.0, measure: str = "robust"
) -> Mapping[str, Any]:
    """The run with the highest `measure` among those with a clean accuracy of at least `floor`.

    If there is none, the run with the highest clean accuracy.

    >>> runs = [{"clean": 0.9, "robust": 0.2}, {"clean": 0.8, "robust": 0.4}]
    >>> best(runs)["robust"], best(runs, floor=0.85)["robust"], best(runs, floor=0.95)["robust"]
    (0.4, 0.2, 0.2)
    """
    allowed = [run for run in runs if run["clean"] >= floor]
    if not allowed:
        return max(runs, key=lambda run: run["clean"])
    return max(allowed, key=lambda run: run[measure])


@dataclass(frozen=True, config=SETTINGS)
class ComparisonConfig:
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
        run. The variant "off" is trained on for as long, as a fair control.
    search
        Settings to be chosen on the validation split before anything else.
    n, epsilon, norm, attacks
        Of the evaluation, on the same n test examples for all runs. {"spsa": 100} as `fewer` tries
        an attack on fewer of them, where it is too slow for all.
    unseen
        Threats that training did not use, such as [{"norm": "l2", "epsilon": 0.6}]: every run is
        evaluated under them as well, by the attacks that are tried on all n. They may be added
        after the runs are finished, while the weights exist.
    audited
        On how many test examples the runs of the variant "taser" are audited, or twice as many
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
    n: Count = 1000
    epsilon: Number = 8 / 255
    norm: Literal["linf", "l2"] = "linf"
    attacks: tuple[str, ...] = ("autoattack", "spsa")
    fewer: dict[str, Count] = field(default_factory=dict)
    unseen: list[Any] = field(default_factory=list)
    audited: Whole = 0

    def __post_init__(self) -> None:
        if "off" not in self.variants or "off" not in (self.scratch or ("off",)):
            raise ValueError(
                'variants need one called off (in YAML in quotes, "off"), which the others are '
                "compared with"
            )
        self._check_evaluation()
        tried = self.search.candidates if self.search else ()
        named = {"tuned": self.tuned, "scratch": self.scratch or (), "search": tried}
        for key, variants in named.items():
            if unknown := [v for v in variants if v not in self.variants]:
                known = ", ".join(self.variants)
                raise ValueError(f"{key} names {unknown[0]!r}, which is no variant: {known}")
        if self.search is not None:
            self.search.check_fair(self.methods)

    def _check_evaluation(self) -> None:
        """Raise now what would otherwise fail after a training."""
        Threat(self.norm, self.epsilon)
        for attack in (*self.attacks, *self.fewer):
            if attack not in NAMES:
                raise ValueError(f"there is no attack {attack!r}: {', '.join(NAMES)}")
        for threat in self.unseen:
            if not isinstance(threat, dict) or "epsilon" not in threat or set(threat) - THREAT:
                raise ValueError(
                    f"unseen needs threats such as {{norm: l2, epsilon: 0.6}}; got {threat}"
                )
            Threat(**threat)
        if self.unseen and not set(self.attacks) - set(self.fewer):
            raise ValueError("unseen needs an attack that is tried on all n examples")

    def check_runs(self) -> None:
        """Read the recipe of every run with its overrides, so that mistakes show early."""
        jobs = [job for job in self.jobs().values() if "recipe" in job]
        for job in jobs:
            read_recipe(job["recipe"], [*job["overrides"], *job.get("candidate", [])])
        searched = _keys(chain.from_iterable(job.get("candidate", []) for job in jobs))
        tuned = chain.from_iterable(by_method.values() for by_method in self.tuned.values())
        if both := searched & _keys([*(self.finetune or []), *chain.from_iterable(tuned)]):
            raise ValueError(
                f"{min(both)} is searched for, and set by finetune or tuned: leave out one of them"
            )

    def jobs(self) -> dict[str, Job]:
        """Every run by its name. The order of names is that of the work."""
        found: dict[str, Job] = {}
        for name, job in self._jobs():
            if name in found:
                raise ValueError(f"two runs would be called {name}: give variants other names")
            found[name] = job
        return found

    def _jobs(self) -> Iterator[tuple[str, Job]]:
        if self.search is not None:
            for method in self.search.sources(self.methods):
                yield from self._search_jobs(self.search, method)
        for seed in self.seeds:
            for method in self.methods:
                for variant in self.variants:
                    if self.scratch is None or variant in self.scratch:
                        job = self._run(method, variant, seed)
                        yield from self._with_unseen(job_name(method, variant, seed), job)
                if self.finetune is not None:
                    start = {"start": job_name(method, "off", seed)}
                    for variant in self.variants:
                        job = {**self._run(method, variant, seed, self.finetune), **start}
                        name = job_name(method, variant, seed, "3-tune")
                        yield from self._with_unseen(name, job)

    def _with_unseen(self, name: str, job: Job) -> Iterator[tuple[str, Job]]:
        """A run, and the evaluations of its network under each unseen threat."""
        yield name, job
        attacks = {a: n for a, n in job["evaluation"]["attacks"].items() if a not in self.fewer}
        for threat in (Threat(**given) for given in self.unseen):
            evaluation = {
                "n": self.n, "epsilon": threat.epsilon, "norm": threat.norm, "attacks": attacks
            }  # fmt: skip
            short = f"{threat.norm}-{shown(threat.epsilon).replace('/', '_')}"
            yield f"{name}-{short}", {"judged": name, "evaluation": evaluation}

    def _search_jobs(self, search: Search, method: str) -> Iterator[tuple[str, Job]]:
        """The short runs for one method; those of a variant need the settings of "off"."""
        for variant in search.candidates:
            for number, candidate in enumerate(search.of(variant, method)):
                yield (
                    f"{job_name(method, variant, 0, '1-search')}-{number}",
                    {
                        **self._training(method, variant, 0, search.overrides),
                        "candidate": candidate,
                        "choices": self._choices(method, "off") if variant != "off" else [],
                    },
                )

    def _choices(self, method: str, variant: str) -> list[dict[str, Any]]:
        """The searches that a run needs, and how each is decided."""
        if self.search is None:
            return []
        source = self.search.source(method)
        cost = self.search.clean_cost.get(source)
        return [
            {
                "among": [f"{job_name(source, name, 0, '1-search')}-{i}" for i in range(tried)],
                "measure": "clean" if source == "standard" and name == "off" else "robust",
                "clean_cost": None if name == "off" else cost,
            }
            for name in dict.fromkeys(("off", variant))
            if (tried := len(self.search.of(name, source)))
        ]

    def _run(self, method: str, variant: str, seed: int, more: list[str] | None = None) -> Job:
        """A run of the table with its evaluation; `more`: the overrides of fine-tuning."""
        evaluation = {
            "n": self.n, "epsilon": self.epsilon, "norm": self.norm,
            "attacks": {attack: self.fewer.get(attack, self.n) for attack in self.attacks},
        }  # fmt: skip
        return {
            **self._training(method, variant, seed, more or []),
            "finetuned": more is not None, "evaluation": evaluation,
            "audited": self.audited if variant == "taser" else 0,
            "choices": self._choices(method, variant),
        }  # fmt: skip

    def _training(self, method: str, variant: str, seed: int, more: list[str]) -> Job:
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


def read_comparison(name: Path | str) -> ComparisonConfig:
    """The configuration in a YAML file, or a shipped one such as "digits"; checked as a whole."""
    shipped = FOLDER / "compare" / f"{name}.yaml"
    recipe = f"{name} is the recipe of a run: `taser train --recipe {name}`"
    try:
        path = shipped if shipped.is_file() and not Path(name).is_file() else find_recipe(name)
    except ValueError:
        if str(name) in shipped_recipes():
            raise ValueError(recipe) from None
        known = sorted(path.stem for path in shipped.parent.glob("*.yaml"))
        raise ValueError(
            f"there is no file and no comparison {str(name)!r}{hint(name, known)}; "
            f"those that ship are {', '.join(known)}"
        ) from None
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is no YAML: {error}") from None
    if isinstance(content, dict) and content.keys() & {"data", "loop", "extends"}:
        raise ValueError(recipe)
    if not isinstance(content, dict):
        raise ValueError(f"{name} should hold keys such as methods and variants; got {content!r}")
    config = from_mapping(ComparisonConfig, content, str(name))
    config.check_runs()
    return config
