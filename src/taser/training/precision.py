"""In which precision a step computes."""

from contextlib import AbstractContextManager, nullcontext

import torch

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """Autocast around the base loss, and the scaling of gradients that float16 needs.

    It is ours rather than Accelerate's, which wraps the model's own forward: that would follow the
    model into the penalty, whose differences drown in the rounding of half precision.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "auto":
            fits = device.type == "cuda" and torch.cuda.is_bf16_supported(False)
            name = "bfloat16" if fits else "float32"
        if name == "float16" and device.type == "cpu":
            raise ValueError("float16 training needs a GPU; on a CPU use float32 or bfloat16")
        self.name = name
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    @property
    def half(self) -> bool:
        """Whether the base loss computes in half precision."""
        return DTYPES[self.name] is not None

    def autocast(self) -> AbstractContextManager:
        """The context of the attack and of the base loss."""
        dtype = DTYPES[self.name]
        return torch.autocast(self.device.type, dtype) if dtype else nullcontext()
