"""Where work that nobody told where to go is done, and what the hardware there can do."""

import torch


def accelerator() -> torch.device:
    """The machine's GPU, if it computes in float64 as the statistics do; else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found if found is not None and found.type != "mps" else torch.device("cpu")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; emulated, it is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
