"""The benchmarks measure what they say, at a size where only that can be seen."""

import inspect
from itertools import count
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from taser.cli import app
from taser.report import growth as growth_report
from taser.report import memory as memory_report
from taser.report import overhead as overhead_report
from taser.report import switches as switches_report
from taser.studies import growth, memory, overhead, switches
from taser.studies.measure import in_fresh_process, interleaved, peak_growth
from taser.studies.overhead import PLAIN_LOOPS, Workload

SMALL = Workload(2, 4)


def test_every_mode_of_a_method_and_its_table(tmp_path: Path) -> None:
    result = overhead.measure([SMALL], ["standard", "pgd"], repetitions=1)
    modes = [(cost["method"], cost["mode"]) for cost in result["costs"]]
    assert modes == [
        ("standard", "off"), ("standard", "paper"), ("standard", "default"), ("pgd", "off"),
        ("pgd", "paper"), ("pgd", "default"), *(("pgd", loop) for loop in PLAIN_LOOPS),
    ]  # fmt: skip
    assert all(cost["timing"]["seconds"] > 0 for cost in result["costs"])
    text = overhead_report.write(result, tmp_path).read_text()
    assert "×2.45" in text  # the paper's figure beside ours
    assert all(loop in text for loop in PLAIN_LOOPS)


def test_the_modes_are_what_they_are_called() -> None:
    paper, default, off = (
        overhead.configuration(SMALL, "pgd", overhead.MODES[mode]).regulariser
        for mode in ("paper", "default", "off")
    )
    assert (paper.at, paper.operator, paper.backend) == ("clean", "langevin", "reverse")
    assert (paper.every, paper.fraction) == (1, 1.0)
    assert overhead.configuration(SMALL, "mart", []).optimiser.rate < 1e-5
    assert default.name == "taser"
    assert default.fraction < 1.0
    assert off.name == "none"


def allocate(megabytes: int) -> int:
    return peak_growth(lambda: torch.ones(megabytes << 18).sum())


def test_peak_memory_is_that_of_the_work() -> None:
    small, large = (in_fresh_process(allocate, size) for size in (50, 200))
    assert large - small == pytest.approx(150 << 20, rel=0.1)


def test_ratios_are_to_the_first_of_the_same_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, waited = count(), [0.0]  # each look at the clock takes a nanosecond
    monkeypatch.setattr(
        "taser.studies.measure.time.perf_counter", lambda: 1e-9 * next(looks) + waited[0]
    )

    def wait(seconds: float) -> None:
        waited[0] += seconds

    work = {"one": (lambda: wait(0.05), 1), "four in two steps": (lambda: wait(0.2), 2)}
    ticks: list[int] = []
    timings = interleaved(work, 3, lambda: ticks.append(1))
    assert len(ticks) == 3
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
    monkeypatch.setattr(memory, "in_fresh_process", lambda _, __, ___, mode, ____: peaks[mode])
    result = memory.measure([SMALL], ["pgd"])
    assert [peak["ratio"] for peak in result["peaks"]] == [1.0, 2.5, 1.2]
    assert "1 of 1 within ×1.3" in memory_report.write(result, tmp_path).read_text()


def test_the_loops_that_everybody_writes_take_the_same_step() -> None:
    weights = []
    for whole in PLAIN_LOOPS.values():
        torch.manual_seed(0)
        step = overhead.plain_pgd_loop(SMALL, whole)
        step()
        model = inspect.getclosurevars(step).nonlocals["model"]
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights)


def test_growth_along_an_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(growth.AXES, "batch", (2, 4))
    monkeypatch.setattr(growth, "in_fresh_process", lambda _, size, __: 1000 * size.batch)
    result = growth.measure(["batch"], repetitions=1)
    assert result["curves"]["batch"]["memory_exponent"] == pytest.approx(1.0)
    assert growth_report.write(result, tmp_path).exists()
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    assert "exponent" in growth_report.summary(result)[0]


def test_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "WORKLOAD", SMALL)
    monkeypatch.delitem(switches.ATTACK, "+ torch.compile")  # which needs a C++ compiler
    result = switches.measure(repetitions=1)
    first = [s for s in result["savings"] if s["name"] in ("loop by loss.backward()", "no penalty")]
    assert [saving["timing"]["ratio"] for saving in first] == [1.0, 1.0]
    text = switches_report.write(result, tmp_path).read_text()
    assert "BatchNorm folded" in text
    assert "every second step" in text


@pytest.mark.parametrize(
    ("wrong", "message"), [(["--method", "pgdd"], "methods are"), (["--width", "7"], "widths 64")]
)
def test_wrong_questions(wrong: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "overhead", *wrong])
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
