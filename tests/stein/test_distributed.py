"""Two processes with half the batch each give the penalty and gradient of one with all of it."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import cases
import taser
from taser._runtime import exit_process

CENTRES = ("batch", "running")


def compute(model: torch.nn.Module, rows: slice, center: str) -> tuple[torch.Tensor, torch.Tensor]:
    case = cases.case("batchnorm")
    penalty = taser.SteinPenalty(backend="exact", center=center)
    penalty(model, case.x[rows], case.y[rows], case.s[rows])  # a running mean has a past
    x = case.x[rows] + 0.1
    # The task loss runs the wrapper's forward, as it has to at least once per step.
    loss = model(x).square().mean() + penalty(model, x, case.y[rows], case.s[rows])
    loss.backward()
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in inner.parameters()]
    return loss.detach(), torch.cat([g.flatten() for g in gradients])


def worker(rank: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}.store", rank=rank, world_size=2,
        timeout=timedelta(seconds=100),
    )  # fmt: skip
    mine = slice(2 * rank, 2 * rank + 2)
    results = {}
    for center in CENTRES:
        model = DistributedDataParallel(cases.case("batchnorm").model)
        value, gradient = compute(model, mine, center)
        dist.all_reduce(value)
        results[center] = {"value": value / 2, "gradient": gradient}
    if rank == 0:
        torch.save(results, out)
    exit_process()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    mp.spawn(worker, (str(tmp_path / "both.pt"),), nprocs=2)
    both = torch.load(tmp_path / "both.pt", weights_only=True)
    for center in CENTRES:
        value, gradient = compute(cases.case("batchnorm").model, slice(0, 4), center)
        torch.testing.assert_close(both[center]["value"], value, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(both[center]["gradient"], gradient, rtol=1e-5, atol=1e-8)
