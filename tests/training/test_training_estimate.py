"""The estimated cost of a run."""

import math
import sys
from typing import Any

import pytest
import torch
from small_runs import small
from torch import nn

from taser.training import Learner
from taser.training._build import set_up
from taser.training._estimate_cost import _peak, _timed_step, estimate


def test_an_estimate_before_the_run() -> None:
    setup = set_up(small(objective={"name": "pgd"}, regulariser={"name": "taser"}))
    found = estimate(setup)
    assert found.steps == 2
    assert found.parameters == sum(p.numel() for p in setup.learner.module.parameters())
    assert 0 < found.seconds < 60
    assert 2**26 < found.memory < 2**34
    assert "2 steps" in str(found)


def test_the_steps_of_an_estimate_run_as_many_forwards_as_those_of_training() -> None:
    """Hooks on saved tensors, as of torch.utils.checkpoint, made BatchNorm's pass run twice."""
    calls: dict[str, int] = {}
    for kind in ("training", "estimate"):
        setup = set_up(small(regulariser={"name": "taser", "every": 1, "fraction": 1.0}))
        norm = next(m for m in setup.learner.module.modules() if isinstance(m, nn.BatchNorm2d))
        seen: list[int] = []
        norm.register_forward_hook(lambda _m, x, _y, seen=seen: seen.append(len(x[0])))
        batch = next(iter(setup.batches))
        if kind == "estimate":
            _timed_step(setup, batch, len(batch.x), 0)
        else:
            setup.learner.step(batch.x, batch.y, torch.Generator(), weight=0.3, perturb=False)
        calls[kind] = sum(seen)
    assert calls["estimate"] == calls["training"]


def test_an_estimate_times_a_whole_round_of_a_lazy_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size is warmed up once, and images lie in memory as they do in the run."""
    setup = set_up(small(regulariser={"name": "taser", "every": 3}))
    measured: list[tuple[int, int]] = []
    step = Learner.step

    def counted(self: Learner, x: torch.Tensor, *rest: Any, **options: Any) -> dict:
        assert x.is_contiguous(memory_format=setup.layout)
        measured.append((len(x), self.step_number))
        return step(self, x, *rest, **options)

    monkeypatch.setattr(Learner, "step", counted)
    monkeypatch.setattr("taser.training._estimate_cost.ENOUGH", math.inf)
    estimate(setup)
    assert measured == [(size, number) for size in (8, 16, 32, 64) for number in (0, 0, 1, 2)]


def test_memory_is_counted_in_bytes_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    here = _peak(cpu)
    monkeypatch.setattr("sys.platform", "darwin")  # which counts in bytes, Linux in kilobytes
    assert _peak(cpu) == pytest.approx(here / 1024, rel=0.1)
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert _peak(cpu) == 0
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 7)
    assert _peak(gpu) == 7


def test_an_estimate_changes_no_weights() -> None:
    """A high rate and a heavy penalty on one batch again and again would end in infinities."""
    setup = set_up(
        small(
            regulariser={"name": "taser", "weight": 10.0},
            optimiser={"name": "sgd", "rate": 10.0},
        )
    )
    before = [p.clone() for p in setup.learner.module.parameters()]
    estimate(setup)
    assert all(map(torch.equal, before, setup.learner.module.parameters()))
