"""What a comparison trains and evaluates: its configuration, read from YAML, and its runs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from taser._names import hint, unknown
from taser._settings import SETTINGS, Count, Number, Whole, from_mapping, read_yaml
from taser.attacks import ATTACK_NAMES, Threat
from taser.training import read_recipe
from taser.training._recipes import FOLDER, check_code, find_recipe, shipped_recipes

Job = dict[str, Any]
"""The settings of one run, as JSON."""
Candidates = list[list[str]]
"""Settings to try, each a list of overrides."""
BY_VARIANT = TypeAdapter(dict[str, Candidates | dict[str, Candidates]], config=SETTINGS)

METHODS = {
    "standard": "Standard", "pgd": "PGD", "trades": "TRADES", "mart": "MART",
    "trades-awp": "TRADES + AWP", "mart-awp": "MART + AWP",
}  # fmt: skip
VARIANTS = {"off": "—", "taser": "+ TASER", "gradient": "+ ‖∇m‖²", "smooth": "SiLU only"}


@dataclass(frozen=True, config=SETTINGS)
class Search:
    """Which settings are tried on the validation split, and how one of them is chosen.

    candidates: by variant, a list of lists of overrides, one run each, or such a list by method;
    all variants use the settings chosen for "off", and the others get equally many candidates.
    overrides: make the runs short. shared: {method: the method whose chosen settings it uses}.
    clean_cost: by method, the clean validation accuracy that a candidate may lose against "off".
    """

    candidates: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    clean_cost: dict[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            BY_VARIANT.validate_python(self.candidates)
        except ValidationError:
            raise ValueError(
                "search.candidates should be lists of lists of overrides by variant, such as "
                f"{{'off': [[optimiser.rate=0.1]]}}, or by variant and method; got "
                f"{self.candidates!r}"
            ) from None
        if not self.candidates.get("off"):
            raise ValueError("search.candidates needs an entry 'off'; [[]] tries the defaults")

    def of(self, variant: str, method: str) -> Candidates:
        """The candidates for a variant of a method; none if the variant has no entry."""
        tried = self.candidates.get(variant, [])
        if not isinstance(tried, dict):
            return tried
        if method not in tried:
            known = f"lists for {', '.join(tried)}, but none for {method}"
            raise ValueError(f"search.candidates.{variant} has {known}")
        return tried[method]

    def check_fair(self, methods: Iterable[str]) -> None:
        """Raise unless all variants but "off" have equally many candidates, for each method."""
        for method in self.sources(methods):
            if not self.of("off", method):
                raise ValueError(f"search.candidates has no entry 'off' for {method}")
            sizes = {v: len(self.of(v, method)) for v in self.candidates if v != "off"}
            if len(set(sizes.values())) > 1:
                raise ValueError(
                    f"a fair search tries equally many settings of each variant; {method}: {sizes}"
                )

    def sources(self, methods: Iterable[str]) -> list[str]:
        """The methods that are searched."""
        return list(dict.fromkeys(self.shared.get(method, method) for method in methods))


@dataclass(frozen=True, config=SETTINGS)
class ComparisonConfig:
    """Methods × variants × seeds; "off" is the variant that the others are compared with.

    recipe
        The family of recipes: a run uses the recipe <recipe>/<method>.
    variants
        {name: its overrides}, such as {"off": [], "taser": ["regulariser.name=taser", …]}.
        For one method, `tuned` adds more: {"taser": {"pgd": ["regulariser.weight=0.1"]}}.
    scratch
        The variants that are trained from scratch, "off" among them; by default all.
    finetune
        Overrides of fine-tuning: each variant starts from the best weights of the method's "off"
        run. The variant "off" gets the same further training, as a fair control.
    search
        Settings to choose on the validation split before all other runs.
    n, epsilon, norm, attacks, fewer
        Set the evaluation, on the same n test examples for all runs. `fewer`, such as
        {"spsa": 100}, runs an attack on fewer of them.
    audited
        The least number of test examples on which runs of the variant "taser" are audited.
    """

    recipe: str = "digits"
    methods: tuple[str, ...] = tuple(METHODS)
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
    audited: Whole = 0

    def __post_init__(self) -> None:
        if "off" not in self.variants or "off" not in (self.scratch or ("off",)):
            which = "which the others are compared with"
            raise ValueError(f'variants need one called off (in YAML in quotes, "off"), {which}')
        Threat(self.norm, self.epsilon)
        for attack in (*self.attacks, *self.fewer):
            if attack not in ATTACK_NAMES:
                raise unknown("attack", attack, ATTACK_NAMES)
        tried = self.search.candidates if self.search else ()
        named = {"tuned": self.tuned, "scratch": self.scratch or (), "search": tried}
        for key, variants in named.items():
            if strange := [v for v in variants if v not in self.variants]:
                known = ", ".join(self.variants)
                raise ValueError(f"{key} names {strange[0]!r}, which is no variant: {known}")
        if self.search is not None:
            self.search.check_fair(self.methods)

    def check_runs(self, *, trust_code: bool = False) -> None:
        """Read the recipe of every run with its overrides, so that mistakes are found early."""
        searched = set()
        for job in self.runs().values():
            if "recipe" in job:
                candidate = job.get("candidate", [])
                changes = [*job["overrides"], *candidate]
                config = read_recipe(job["recipe"], changes, trust_code=True)
                check_code(config, job["recipe"], trust_code=trust_code)
                searched |= {override.partition("=")[0] for override in candidate}
        tuned = [o for methods in self.tuned.values() for lines in methods.values() for o in lines]
        fixed = {override.partition("=")[0] for override in [*(self.finetune or []), *tuned]}
        if both := searched & fixed:
            raise ValueError(
                f"{min(both)} is searched for, and set by finetune or tuned: leave out one of them"
            )

    def runs(self) -> dict[str, Job]:
        """The settings of every run, by its name; runs begin in the order of names."""
        found: dict[str, Job] = {}
        for name, job in self._all_runs():
            if name in found:
                raise ValueError(f"two runs would be called {name}: give variants other names")
            found[name] = job
        return found

    def _all_runs(self) -> Iterator[tuple[str, Job]]:
        if self.search is not None:
            for method in self.search.sources(self.methods):
                yield from self._search_runs(self.search, method)
        for seed in self.seeds:
            for method in self.methods:
                for variant in self.scratch or self.variants:
                    job = self._run(method, variant, seed, None)
                    yield job_name(method, variant, seed), job
                for variant in self.variants if self.finetune is not None else ():
                    job = self._run(method, variant, seed, self.finetune)
                    job["start"] = job_name(method, "off", seed)
                    yield job_name(method, variant, seed, "3-tune"), job

    def _search_runs(self, search: Search, method: str) -> Iterator[tuple[str, Job]]:
        """The short runs for one method; other variants need the settings chosen for "off"."""
        for variant in search.candidates:
            for number, candidate in enumerate(search.of(variant, method)):
                job = self._training(method, variant, 0, search.overrides)
                job["candidate"] = candidate
                job["choices"] = self._choices(method, "off") if variant != "off" else []
                yield f"{job_name(method, variant, 0, '1-search')}-{number}", job

    def _choices(self, method: str, variant: str) -> list[dict[str, Any]]:
        """The searches that a run needs, and how each chooses its winner."""
        if self.search is None:
            return []
        (source,) = self.search.sources([method])
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

    def _run(self, method: str, variant: str, seed: int, finetune: list[str] | None) -> Job:
        """A run with its evaluation. finetune: overrides of fine-tuning, None: from scratch."""
        attacks = {attack: self.fewer.get(attack, self.n) for attack in self.attacks}
        how = {"n": self.n, "epsilon": self.epsilon, "norm": self.norm, "attacks": attacks}
        return {
            **self._training(method, variant, seed, finetune or []),
            "finetuned": finetune is not None, "evaluation": how,
            "audited": self.audited if variant == "taser" else 0,
            "choices": self._choices(method, variant),
        }  # fmt: skip

    def _training(self, method: str, variant: str, seed: int, more: list[str]) -> Job:
        tuned = self.tuned.get(variant, {}).get(method, [])
        overrides = [*self.overrides, *more, *self.variants[variant], *tuned, f"loop.seed={seed}"]
        return {"method": method, "variant": variant, "seed": seed,
                "recipe": f"{self.recipe}/{method}", "overrides": overrides}  # fmt: skip


def job_name(method: str, variant: str, seed: int, kind: str = "2-train") -> str:
    """A folder's name: seeds first, then searches, runs from scratch, fine-tuning; then methods."""
    order = list(METHODS).index(method) if method in METHODS else len(METHODS)
    plain = re.sub(r"[^\w.=-]+", "_", variant.replace("λ", "lambda"), flags=re.ASCII)
    return f"{seed}-{kind}-{order}-{method}-{plain}"


def method_title(method: str, finetuned: bool = False) -> str:
    """A method's name in tables and above figures."""
    return METHODS.get(method, method) + (" (fine-tuned)" if finetuned else "")


def variant_label(variant: str) -> str:
    """A variant's name in tables."""
    return VARIANTS.get(variant, variant)


def run_title(job: Job) -> str:
    """A run in words, such as "PGD + TASER, seed 0"."""
    variant = "" if job["variant"] == "off" else f" {variant_label(job['variant'])}"
    tried = "".join(f", {override}" for override in job.get("candidate", []))
    return f"{method_title(job['method'], 'start' in job)}{variant}, seed {job['seed']}{tried}"


def read_comparison(name: Path | str, *, trust_code: bool = False) -> ComparisonConfig:
    """The configuration in a YAML file, or a shipped one such as "digits"; all runs are checked."""
    shipped = FOLDER / "compare" / f"{name}.yaml"
    recipe = f"{name} is a recipe for one run: `taser train --recipe {name}`"
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
    content = read_yaml(path)
    if content.keys() & {"data", "loop", "extends"}:
        raise ValueError(recipe)
    if not content:
        raise ValueError(f"{name} is empty; a comparison needs at least `recipe`")
    config = from_mapping(ComparisonConfig, content, str(name))
    config.check_runs(trust_code=trust_code)
    return config
