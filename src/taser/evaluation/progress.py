"""How far an evaluation is, counted in forward passes, so that time left can be told."""

from collections.abc import Sequence

from torch import Tensor

from taser.attacks import Attack
from taser.attacks.cascade import stages_of
from taser.progress import Progress


class Meter:
    """Adds up passes as batches finish; what a broken example is spared counts as done."""

    def __init__(self, progress: Progress | None, attacks: Sequence[Attack], clean: Tensor) -> None:
        self._tell = progress or (lambda _done, _total, _label: None)
        self._attacks, self._examples = attacks, int(clean.sum())
        self._left = {a.name: [len(clean.nonzero()) for _ in stages_of(a)] for a in attacks}
        self._tell(0, self.total, f"clean {100 * float(clean.float().mean()):.1f} %")

    @property
    def total(self) -> int:
        """The passes of an evaluation in which nothing breaks."""
        return max(1, self._examples * sum(_cost(s) for a in self._attacks for s in stages_of(a)))

    def tick(self, attack: Attack, stage: Attack, rows: Tensor, standing: Tensor) -> None:
        """A batch is done: `rows` of it, and (n,) which examples stand now."""
        left, stages = self._left[attack.name], list(stages_of(attack))
        place = stages.index(stage)
        left[:place] = [0] * place
        left[place] = max(0, left[place] - len(rows))
        left[place + 1 :] = [int(standing.sum())] * (len(stages) - place - 1)
        to_do = sum(
            count * _cost(stage)
            for a in self._attacks
            for count, stage in zip(self._left[a.name], stages_of(a), strict=True)
        )
        name = attack.name if len(stages) == 1 else f"{attack.name} {stage.name}"
        robust = 100 * float(standing.float().mean())
        self._tell(self.total - to_do, self.total, f"{name}, robust so far {robust:.1f} %")


def _cost(stage: Attack) -> int:
    return getattr(stage, "passes", 1000)
