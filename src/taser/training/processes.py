"""A process among several: which one it is, and how it ends."""

import os
import sys

import torch.distributed as dist

from taser.stein.part import processes


def is_first() -> bool:
    """Whether this process is the one that writes and tells, which a single one always is."""
    return processes() == 1 or dist.get_rank() == 0


def leave() -> None:
    """End a process of several here and now, well; alone, do nothing.

    DistributedDataParallel keeps gloo's threads alive beyond destroy_process_group (torch 2.13).
    One that still has a tensor to free when the interpreter shuts down aborts the process, and then
    a run that was finished counts as failed.
    """
    if processes() > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
