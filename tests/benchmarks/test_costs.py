"""The benchmarks measure what they say, at a size where only that can be seen."""

import json
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
import torch

import effect
import growth
import taser
import two_lines
from measure import in_fresh_process, interleaved, peak_growth
from two_lines import Workload

SMALL = {
    "cnn": Workload("a CNN", "cnn", 2, (1, 8, 8), 4, "digits", 0.1),
    "mlp": Workload("an MLP", "mlp", 4, (5,), 8, "gaussian", 0.1),
}


def run(script: ModuleType, out: Path, *options: str) -> tuple[dict, str]:
    """A script's numbers and its page."""
    script.main([*options, "--out", str(out), "--threads", "1"])
    name = script.__name__
    return json.loads((out / f"{name}.json").read_text()), (out / f"{name}.md").read_text()


def test_the_two_lines_and_their_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_lines, "WORKLOADS", SMALL)
    monkeypatch.setattr(two_lines, "in_fresh_process", lambda *_: 12_000_000)
    monkeypatch.setattr("measure.SHORTEST", 1e-9)
    result, text = run(two_lines, tmp_path, "--repetitions", "1")
    for found in result["times"].values():
        assert found["plain"]["ratio"] == 1.0
        assert len(found) == 13
        assert all(timing["seconds"] > 0 for timing in found.values())
    assert "| TASER, the two lines | ×" in text
    assert "| PGD-10 | 12 | 12 |" in text


def test_the_two_lines_are_those_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default form, attached to its model; the rows beside it say what differs."""
    made: dict[str, taser.regularisers.Regulariser] = {}

    def keep(_workload: Workload, regulariser: taser.regularisers.Regulariser, **_: object) -> None:
        made[name] = regulariser

    monkeypatch.setattr(two_lines, "in_own_loop", keep)
    monkeypatch.setattr(two_lines, "in_training", lambda *_: None)
    for name, build in two_lines.rows(SMALL["cnn"]).items():  # noqa: B007
        build()
    default = taser.Taser(made["TASER, the two lines"].score, threat=taser.Threat("linf", 0.1))  # type: ignore[arg-type]
    assert repr(made["TASER, the two lines"]) == repr(default)
    whole, paper = (
        made["TASER, each example in each step"],
        made["TASER, form `paper` by double backward"],
    )
    assert (whole.fraction, whole.every, paper.form) == (1.0, 1, "paper")  # type: ignore[union-attr]


def test_each_network_makes_a_step() -> None:
    for workload in two_lines.WORKLOADS.values():
        if workload.width < 64 or workload.model != "resnet18":
            one = two_lines.replace(workload, batch=2)
            for step in (two_lines.in_own_loop(one), two_lines.in_training(one)):
                step[0]()


def allocate(megabytes: int) -> int:
    return peak_growth(lambda: torch.ones(megabytes << 18).sum())


def test_peak_memory_is_that_of_the_work() -> None:
    small, large = (in_fresh_process(allocate, size) for size in (50, 200))
    assert large - small == pytest.approx(150 << 20, rel=0.1)


def test_peak_memory_of_a_training_step() -> None:
    workload = Workload("a ResNet", "resnet18", 4, (3, 32, 32), 32, "cifar10", 0.1)
    plain, paper = (
        in_fresh_process(two_lines.peak, workload, name, 1)
        for name in ("plain", "TASER, form `paper` by double backward")
    )
    assert 0 < 1.5 * plain < paper


def test_ratios_are_to_the_first_of_the_same_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, waited = count(), [0.0]  # each look at the clock takes a nanosecond
    monkeypatch.setattr("measure.time.perf_counter", lambda: 1e-9 * next(looks) + waited[0])

    def wait(seconds: float) -> None:
        waited[0] += seconds

    work = {"one": (lambda: wait(0.02), 1), "four in two steps": (lambda: wait(0.08), 2)}
    timings = interleaved(work, 3)
    assert timings["one"].ratio == timings["one"].ratio_low == 1.0
    assert timings["one"].seconds == pytest.approx(0.02, rel=1e-6)
    found = timings["four in two steps"]
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.ratio == pytest.approx(2.0, rel=1e-6)


def test_growth_along_an_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(growth.AXES, "batch", (2, 4))
    monkeypatch.setattr(growth, "in_fresh_process", lambda _, size, __: 1000 * size.batch)
    result, text = run(growth, tmp_path, "--axes", "batch", "--repetitions", "1")
    assert result["curves"]["batch"]["memory_exponent"] == pytest.approx(1.0)
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    assert "| batch | 2, 4 |" in text


def test_the_exponent_of_linear_growth_is_one() -> None:
    assert growth.exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1.0)


def test_wrong_choices(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run(two_lines, tmp_path, "--workloads", "vgg")
    assert "invalid choice: vgg" in capsys.readouterr().err.replace("'", "")


def test_the_effect_of_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(effect.TASKS, "digits", effect.Task((1, 8, 8), 2, 16, 1, 0.1, 32, 10))
    monkeypatch.setattr(effect, "SETTINGS", ((0.5, 1), (0.5, 2)))
    for seed in "01":  # a second call adds to the first one's
        effect.main(["--data", "digits", "--seeds", seed, "--threads", "1", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "effect.json").read_text())
    assert [(one["every"], one["seed"]) for one in found] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert all(0 <= one["robust"] <= one["clean"] <= 100 for one in found)
    assert "| digits | digits | 0.5 | 2 | 0.3 | 2 |" in capsys.readouterr().out
