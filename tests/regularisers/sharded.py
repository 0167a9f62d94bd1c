"""What test_sharded.py runs by torchrun: TASER on a network that FSDP shards over two processes."""

import copy
import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import taser


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, attach: bool, **options: str) -> None:
    """One backward pass of the loss with TASER."""
    score = taser.scores.pretrained("digits").at(timestep=50)
    robust = taser.Taser(score, threat=taser.Threat("linf", 0.15), fraction=1, **options)
    if attach:
        robust.attach(model)
    model.zero_grad()
    (F.cross_entropy(model(x), y) + 0.3 * robust(model, x, y)).backward()


def main() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 10))
    model = copy.deepcopy(plain)
    x, y = (
        torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(1)),
        torch.arange(16) % 10,
    )
    found = {}
    step(
        plain, x, y, attach=False, backend="difference"
    )  # in one process, before the others are known

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for module in (model[1], model[3], model):
        fully_shard(module, mesh=mesh)
    own = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    for attach in (False, True):
        step(model, x[own], y[own], attach)
        both = zip(model.parameters(), plain.parameters(), strict=True)
        gaps = [(p.grad.full_tensor() - q.grad).norm() / q.grad.norm() for p, q in both]
        found["attached" if attach else "alone"] = float(max(gaps))
    try:
        step(model, x[own], y[own], attach=False, backend="reverse")
    except taser.stein.UnsupportedLayer as error:
        found["reverse"] = str(error)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as stream:
            json.dump(found, stream)
    dist.destroy_process_group()


if __name__ == "__main__":  # the doctests' collection imports this file
    main()
