"""What the table of methods compares: which runs, and how they are judged."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

from taser.attacks import Threat, fraction
from taser.attacks.threat import shown
from taser.evaluation.named_attacks import NAMES
from taser.nearest import hint
from taser.training import read_recipe

from .search import Search

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
