"""Several processes that share each batch."""

import os
import sys

import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """How many processes share the global batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Whether this process writes files and prints: the first of several, or the only one."""
    return world_size() == 1 or dist.get_rank() == 0


def all_sum(tensor: Tensor) -> Tensor:
    """Sum `tensor` over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def average_buffers(module: nn.Module) -> None:
    """Give all processes the mean of their buffers, such as BatchNorm's statistics."""
    for buffer in module.buffers():
        if buffer.is_floating_point():
            all_sum(buffer).div_(world_size())


def exit_process() -> None:
    """End this process at once with exit code 0 if it is one of several; else do nothing.

    DistributedDataParallel keeps gloo's threads alive beyond destroy_process_group (torch 2.13). If
    a tensor is freed while the interpreter shuts down, the process aborts, and a finished run
    counts as failed.
    """
    if world_size() > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
