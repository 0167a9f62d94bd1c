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
        targeted = package.apgd_targeted
        targeted.n_iter = self.budget
        # The steps at which its step size is judged: the package's shares of all steps.
        targeted.n_iter_2 = max(int(0.22 * self.budget), 1)
        targeted.n_iter_min = max(int(0.06 * self.budget), 1)
        targeted.size_decr = max(int(0.03 * self.budget), 1)
        return package
