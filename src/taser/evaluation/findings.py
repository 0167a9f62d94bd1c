"""What a reader should know before believing a figure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something odd about a model, its data or an attack, in one sentence.

    name: short and the same for every model, such as "probabilities".
    """

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"
