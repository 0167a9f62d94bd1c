"""The benchmarks measure what they say, at a size where only that can be seen."""

import inspect
import json
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
import torch

import growth
import memory
import overhead
import switches
import training_steps
from measure import Timing, in_fresh_process, interleaved, peak_growth
from training_steps import MODES, PLAIN_LOOPS, Workload

SMALL = Workload(2, 4)


def run(script: ModuleType, out: Path, *options: str) -> tuple[dict, str]:
    """A script's numbers and its page."""
    script.main([*options, "--out", str(out), "--threads", "1"])
    name = script.__name__
    return json.loads((out / f"{name}.json").read_text()), (out / f"{name}.md").read_text()


def test_every_mode_of_a_method_and_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "WORKLOADS", [SMALL])
    options = ("--methods", "standard", "pgd", "--repetitions", "1")
    result, text = run(overhead, tmp_path, *options)
    modes = [(cost["method"], cost["mode"]) for cost in result["costs"]]
    assert modes == [
        ("standard", "off"), ("standard", "paper"), ("standard", "default"), ("pgd", "off"),
        ("pgd", "paper"), ("pgd", "default"), *(("pgd", loop) for loop in PLAIN_LOOPS),
    ]  # fmt: skip
    assert all(cost["timing"]["seconds"] > 0 for cost in result["costs"])
    assert "×2.45" in text  # the paper's figure beside ours
    assert all(loop in text for loop in PLAIN_LOOPS)


def test_the_modes_are_what_they_are_called() -> None:
    paper, default, off = (
        training_steps.configuration(SMALL, "pgd", MODES[mode]).regulariser
        for mode in ("paper", "default", "off")
    )
    assert (paper.form, paper.backend) == ("paper", "reverse")
    assert (paper.every, paper.fraction) == (1, 1.0)
    assert training_steps.configuration(SMALL, "mart", []).optimiser.rate < 1e-5
    assert default.name == "taser"
    assert default.fraction < 1.0
    assert off.name == "none"


def allocate(megabytes: int) -> int:
    return peak_growth(lambda: torch.ones(megabytes << 18).sum())


def test_peak_memory_is_that_of_the_work() -> None:
    small, large = (in_fresh_process(allocate, size) for size in (50, 200))
    assert large - small == pytest.approx(150 << 20, rel=0.1)


def test_peak_memory_of_a_training_step() -> None:
    args = (memory.peak_memory, Workload(4, 32), "standard")
    off, paper = (in_fresh_process(*args, mode, 1) for mode in ("off", "paper"))
    assert 0 < 1.5 * off < paper


def test_ratios_are_to_the_first_of_the_same_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, waited = count(), [0.0]  # each look at the clock takes a nanosecond
    monkeypatch.setattr("measure.time.perf_counter", lambda: 1e-9 * next(looks) + waited[0])

    def wait(seconds: float) -> None:
        waited[0] += seconds

    work = {"one": (lambda: wait(0.05), 1), "four in two steps": (lambda: wait(0.2), 2)}
    timings = interleaved(work, 3)
    calls: list[str] = []
    often = {name: (lambda name=name: calls.append(name), 1) for name in "ab"}
    interleaved(often, 4, seldom="b")
    assert calls == list("ababaaab")
    assert timings["one"].ratio == timings["one"].ratio_low == 1.0
    found = timings["four in two steps"]
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.ratio == pytest.approx(2.0, rel=1e-6)


def test_memory_against_the_method_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"off": 100, "paper": 250, "default": 120}
    monkeypatch.setattr(memory, "WORKLOADS", [SMALL])
    monkeypatch.setattr(memory, "in_fresh_process", lambda _, __, ___, mode, ____: peaks[mode])
    result, text = run(memory, tmp_path, "--methods", "pgd")
    assert [peak["ratio"] for peak in result["peaks"]] == [1.0, 2.5, 1.2]
    assert "×2.50" in text


def test_the_loops_that_everybody_writes_take_the_same_step() -> None:
    weights = []
    for whole in PLAIN_LOOPS.values():
        torch.manual_seed(0)
        step = training_steps.plain_pgd_loop(SMALL, whole)
        step()
        model = inspect.getclosurevars(step).nonlocals["model"]
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights)


def test_growth_along_an_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(growth.AXES, "batch", (2, 4))
    monkeypatch.setattr(growth, "in_fresh_process", lambda _, size, __: 1000 * size.batch)
    result, text = run(growth, tmp_path, "--axes", "batch", "--repetitions", "1")
    assert result["curves"]["batch"]["memory_exponent"] == pytest.approx(1.0)
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    assert "| batch | 2, 4 |" in text


def test_the_exponent_of_linear_growth_is_one() -> None:
    assert growth.exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1.0)


def test_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "WORKLOAD", SMALL)
    result, text = run(switches, tmp_path, "--repetitions", "1")
    first = [s for s in result["savings"] if s["name"] in ("loop by loss.backward()", "no penalty")]
    assert [Timing(**saving["timing"]).ratio for saving in first] == [1.0, 1.0]
    assert "BatchNorm folded" in text
    assert "every second step" in text


@pytest.mark.parametrize("wrong", [("--methods", "pgdd"), ("--widths", "7")])
def test_wrong_choices(
    wrong: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        run(overhead, tmp_path, *wrong)
    assert f"invalid choice: {wrong[1]}" in capsys.readouterr().err.replace("'", "")
