"""What the table of methods compares: which runs, and how they are judged."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from taser.attacks import fraction
from taser.training.recipe import find_recipe

METHODS = ("standard", "pgd", "trades", "mart", "trades-awp", "mart-awp")


@dataclass(frozen=True)
class TableConfig:
    """Methods × variants × seeds; "off" is the variant that the others are compared with.

    recipe
        The family: runs are of the recipes <recipe>/<method>.
    variants
        By name, the overrides that make it: {"off": [], "taser": ["regulariser.name=taser", …]}.
        Per method, `tuned` adds more: {"taser": {"pgd": ["regulariser.weight=0.1"]}}.
    finetune
        Overrides of fine-tuning: then each variant starts from the best weights of the method's
        "off" run, and the variant "off" itself is trained on for as long, as a fair control.
    n, epsilon, norm, attacks
        Of the evaluation, on the same n test examples for all.
    """

    recipe: str = "digits"
    methods: tuple[str, ...] = METHODS
    variants: dict[str, list[str]] = field(
        default_factory=lambda: {"off": [], "taser": ["regulariser.name=taser"]}
    )
    tuned: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    finetune: list[str] | None = None
    seeds: tuple[int, ...] = (0,)
    n: int = 1000
    epsilon: float = 8 / 255
    norm: str = "linf"
    attacks: tuple[str, ...] = ("autoattack", "spsa")

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", fraction(self.epsilon))
        for name in ("methods", "seeds", "attacks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if "off" not in self.variants:
            raise ValueError("variants need one called off, which the others are compared with")

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every run, by a name that sorts in the order of work."""
        return dict(self._jobs())

    def _jobs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        judged = {
            "n": self.n, "epsilon": self.epsilon, "norm": self.norm, "attacks": list(self.attacks)
        }  # fmt: skip
        for seed in self.seeds:
            for method in self.methods:
                for variant in self.variants:
                    if variant == "off" or self.finetune is None:
                        yield (
                            job_name(method, variant, seed),
                            self._job(method, variant, seed, judged),
                        )
                if self.finetune is not None:
                    for variant in self.variants:
                        yield (
                            job_name(method, variant, seed, tuned=True),
                            {
                                **self._job(method, variant, seed, judged, self.finetune),
                                "start": job_name(method, "off", seed),
                            },
                        )

    def _job(
        self,
        method: str,
        variant: str,
        seed: int,
        judged: dict[str, Any],
        more: list[str] | None = None,
    ) -> dict[str, Any]:
        tuned = self.tuned.get(variant, {}).get(method, [])
        overrides = [*self.overrides, *(more or []), *self.variants[variant], *tuned]
        return {
            "method": method, "variant": variant, "seed": seed, "finetuned": more is not None,
            "recipe": f"{self.recipe}/{method}", "overrides": [*overrides, f"loop.seed={seed}"],
            "evaluation": judged,
        }  # fmt: skip


def job_name(method: str, variant: str, seed: int, *, tuned: bool = False) -> str:
    """A folder's name: seeds first, then methods; fine-tuning after what it starts from."""
    kind = "tune" if tuned else "base"
    order = METHODS.index(method) if method in METHODS else len(METHODS)
    return f"{seed}-{kind}-{order}-{method}-{variant}"


def read_table_config(name: Path | str) -> TableConfig:
    """A table's YAML, such as the shipped studies/digits; unknown keys are refused."""
    content = yaml.safe_load(find_recipe(name).read_text())
    known = set(TableConfig.__dataclass_fields__)
    if not isinstance(content, dict) or not set(content) <= known:
        wrong = ", ".join(sorted(set(content) - known)) if isinstance(content, dict) else content
        raise ValueError(f"{name}: there is no {wrong}; the keys are {', '.join(sorted(known))}")
    return TableConfig(**content)
