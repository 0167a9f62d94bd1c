"""Parts of AutoAttack with a budget of one's own."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from taser.attacks import AutoAttackPart


@dataclass(frozen=True)
class Budgeted(AutoAttackPart):
    """Square with `budget` queries instead of 5000, targeted APGD with as many steps, not 100."""

    budget: int = 100

    def _package(self, sieve: Any, x: Tensor) -> Any:
        package = super()._package(sieve, x)
        package.square.n_queries = self.budget
        package.apgd_targeted.n_iter = self.budget
        package.apgd_targeted.init_hyperparam(x)  # the steps at which its step size is judged
        return package
