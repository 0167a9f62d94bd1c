"""Cost of a score per training step: computed by the network, or read from a cache.

    python benchmarks/score_cache.py --out benchmarks/results

A CIFAR ResNet-18 of width 16 takes first-order TASER steps on digits-sized batches with the shipped
denoiser. Each variant is timed right after a plain step; calls of the score network are counted.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import taser
from measure import markdown, write
from taser.data import Batches, CropAndFlip, load
from taser.scores import read_cache, write_cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for score_cache.json and score_cache.md")
    arguments = parser.parse_args()

    train = load("digits").train
    denoiser = taser.scores.pretrained("digits")
    score = denoiser.at(timestep=50)
    calls = 0

    def counted(*_: object) -> None:
        nonlocal calls
        calls += 1

    denoiser.register_forward_hook(counted)
    with tempfile.TemporaryDirectory() as folder:
        write_cache(Path(folder), score, train.x, data=train.hash)
        scores = torch.from_numpy(read_cache(Path(folder), data=train.hash).copy())
    batches = Batches(train, 128, scores=scores, augment=CropAndFlip(padding=1, flip=False))
    batch = next(iter(batches))
    assert batch.s is not None
    model = taser.models.ResNet18(width=16, mean=(0.3,), std=(0.4,))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    penalty = taser.SteinPenalty(operator="first_order")

    def step(s: Callable[[], Tensor] | None) -> float:
        start = time.perf_counter()
        loss = F.cross_entropy(model(batch.x), batch.y)
        if s is not None:
            loss = loss + 1e-3 * penalty(model, batch.x, batch.y, s())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return time.perf_counter() - start

    cached = batch.s.float()
    variants: dict[str, Callable[[], Tensor] | None] = {
        "plain step": None,
        "TASER, score from the cache": lambda: cached,
        "TASER, score network each step": lambda: score(batch.x),
    }
    for s in variants.values():
        step(s)
    rows = []
    for name, s in variants.items():
        calls, ratios = 0, []
        for _ in range(arguments.repetitions):
            before = step(None)
            ratios.append(step(s) / before)
        rows.append(
            {
                "what": name,
                "ratio": statistics.median(ratios),
                "low": min(ratios),
                "high": max(ratios),
                "calls": calls / arguments.repetitions,
            }
        )
    table = markdown(
        ["what", "in plain steps", "range", "score network calls per step"],
        [
            [r["what"], f"{r['ratio']:.2f}", f"{r['low']:.2f}–{r['high']:.2f}", f"{r['calls']:g}"]
            for r in rows
        ],
    )
    print(table)
    if arguments.out:
        write(arguments.out, "score_cache", "Cost of the score", rows, [table])


if __name__ == "__main__":
    main()
