"""Where work that nobody told where to go is done."""

import torch


def accelerator() -> torch.device:
    """The machine's GPU, if it computes in float64 as the statistics do; else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found if found is not None and found.type != "mps" else torch.device("cpu")
