"""The evaluation as a whole: verdicts that add up, and a record that can be had again."""

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attacks.victims import digits, undefended
from taser.attacks import FGSM, SPSA, AttackWarning, Cascade, RandomNoise, RestartedPGD, Threat
from taser.evaluation import Evaluation, evaluate, subset
from taser.evaluation.store import OtherRun

THREAT = Threat("linf", 0.1)
PGD = RestartedPGD(THREAT, steps=10, restarts=2)
QUICK_SPSA = SPSA(THREAT, iterations=5, samples=16)


def verdicts(evaluation: Evaluation) -> dict:
    """Everything of a record but the time it took."""
    numbers = {name: v.numbers() for name, v in evaluation.attacks.items()}
    for attack in numbers.values():
        del attack["seconds"]
    return {
        "clean": evaluation.clean.tolist(),
        "index": evaluation.index.tolist(),
        "attacks": numbers,
        "findings": evaluation.findings,
        "provenance": evaluation.provenance,
    }


def quick(model: nn.Module | None = None, **options: object) -> Evaluation:
    x, y = digits(60)
    settings = {"threat": THREAT, "attacks": (PGD, QUICK_SPSA), "n": 50, "batch_size": 16}
    return evaluate(model or undefended(), x, y, **(settings | options))  # type: ignore[arg-type]


def test_figures_follow_from_the_record() -> None:
    found = quick()
    pgd, spsa = found.attacks["pgd"].standing, found.attacks["spsa"].standing
    assert found.n == 50 == len(found.clean)
    assert found.clean_accuracy == int(found.clean.sum()) / 50
    assert found.accuracy("pgd") == int(pgd.sum()) / 50
    assert torch.equal(found.standing, found.clean & pgd & spsa)
    assert found.robust_accuracy <= min(found.accuracy("pgd"), found.accuracy("spsa"))
    assert 0 < found.robust_accuracy < found.clean_accuracy
    assert not (pgd & ~found.clean).any()  # what is wrong when clean does not stand


def test_verdicts_can_be_checked_by_anybody() -> None:
    found, (x, y) = quick(), digits(60)
    assert found.attacked is not None
    x, y = x[found.index], y[found.index]
    with torch.no_grad():
        right = undefended()(found.attacked).argmax(1) == y
    assert torch.equal(right, found.standing)
    distance = THREAT.distance(found.attacked, x)
    assert float(distance.max()) <= THREAT.epsilon + 1e-6
    broken = found.clean & ~found.attacks["pgd"].standing
    torch.testing.assert_close(found.attacks["pgd"].distance[broken], distance[broken])
    assert not found.attacks["pgd"].distance[~broken].any()


def test_each_attack_has_an_accuracy_of_its_own() -> None:
    both, alone = quick(), quick(attacks=(QUICK_SPSA,))
    assert torch.equal(both.attacks["spsa"].standing, alone.attacks["spsa"].standing)


def test_the_papers_average_needs_both_attacks() -> None:
    assert quick().paper_average is None
    aa = Cascade("autoattack", (PGD, RandomNoise(THREAT, samples=5)))
    found = quick(attacks=(aa, QUICK_SPSA))
    average = (found.accuracy("autoattack") + found.accuracy("spsa")) / 2
    assert found.paper_average == average >= found.robust_accuracy


def test_stages_of_a_cascade_share_the_work_and_are_told_apart() -> None:
    cascade = Cascade("cascade", (FGSM(THREAT), PGD))
    found = quick(attacks=(cascade,)).attacks["cascade"]
    first = quick(attacks=(FGSM(THREAT),)).attacks["fgsm"]
    assert torch.equal(found.stage == 0, first.stage == 0)
    assert (found.stage == 1).any()
    after = found.after(quick(attacks=("fgsm",)).clean)
    assert list(after) == ["fgsm", "pgd"]
    assert after["fgsm"] == first.accuracy
    assert after["pgd"] == found.accuracy


def test_the_record_survives_json() -> None:
    found = quick()
    again = Evaluation.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert verdicts(again) == verdicts(found)
    assert again.threat == found.threat
    with pytest.raises(ValueError, match="record"):
        Evaluation.from_json("{}")


def test_the_same_seed_gives_the_same_record_and_the_model_is_left_alone() -> None:
    model = copy.deepcopy(undefended(norm=True)).train()
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    one = quick(model)
    assert verdicts(one) == verdicts(quick(model))
    assert verdicts(one) != verdicts(quick(model, seed=1))
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_the_subset_is_the_same_for_all_and_nested() -> None:
    assert torch.equal(subset(10_000, 1000), subset(10_000, 1000))
    small, large = (set(subset(10_000, n).tolist()) for n in (500, 1000))
    assert len(large) == 1000
    assert small < large
    with pytest.raises(ValueError, match="at least 1"):
        subset(10, 0)


class Cheat(FGSM):
    """Claims to attack within ε and goes ten times as far."""

    def __call__(self, model, x, y, *, generator=None) -> Tensor:
        far = FGSM(Threat("linf", 10 * self.threat.epsilon))
        return far(model, x, y, generator=generator)


def test_an_attack_that_leaves_its_ball_is_not_believed() -> None:
    threat = Threat("linf", 0.05)
    found = quick(threat=threat, attacks=(Cheat(threat),))
    assert found.accuracy("fgsm") == found.clean_accuracy
    (finding,) = found.findings
    assert finding.name == "fgsm strays"
    assert "not counted" in finding.message


class Talkative(FGSM):
    def __call__(self, model, x, y, *, generator=None) -> Tensor:
        import warnings

        warnings.warn("gradients look odd", AttackWarning, stacklevel=2)
        return super().__call__(model, x, y, generator=generator)


def test_warnings_of_attacks_become_findings_once() -> None:
    found = quick(attacks=(Talkative(THREAT),))
    assert [str(f) for f in found.findings] == ["fgsm: gradients look odd"]


def test_progress_rises_to_the_end_and_tells_accuracy() -> None:
    seen: list[tuple[int, int, str]] = []
    found = quick(progress=lambda *told: seen.append(told))
    done = [step for step, _, _ in seen]
    assert done == sorted(done)
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert f"robust so far {100 * found.accuracy('spsa'):.1f} %" in seen[-1][2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacks": ("pdg",)}, "should be one of"),
        ({"attacks": ()}, "should be one"),
        ({"attacks": ("pgd", PGD)}, "one name each"),
        ({"attacks": (FGSM(Threat("linf", 0.2)),)}, "within"),
        ({"batch_size": 0}, "batch_size"),
        ({"n": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options)


def test_two_classes_are_evaluated_and_the_change_is_told() -> None:
    x, y = digits(60)
    model = nn.Sequential(undefended(), nn.Linear(10, 2)).eval()
    torch.nn.init.eye_(model[1].weight)
    few = y < 2
    found = evaluate(model, x[few], y[few], threat=THREAT, attacks=("autoattack",), n=2)
    assert any("PGD on the margin" in finding.message for finding in found.findings)


def test_nothing_to_attack_is_no_error() -> None:
    x, y = digits(20)
    found = evaluate(undefended(), x, (y + 1) % 10, threat=THREAT, attacks=(PGD,))
    assert found.clean_accuracy == found.robust_accuracy == 0.0


SCRIPT = """
import sys, time
sys.path[:0] = {path!r}
import torch
torch.set_num_threads(1)
from test_evaluation import quick
quick(out={out!r}, progress=lambda *told: time.sleep(0.3))
"""


def test_killed_and_started_again_it_gives_the_same_record(tmp_path: Path) -> None:
    whole = quick()
    out = tmp_path / "run"
    here = Path(__file__).parent
    script = SCRIPT.format(path=[str(here), str(here.parent)], out=str(out))
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("batches/*.safetensors"))) < 3:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("batches/*.safetensors")}
    assert not (out / "evaluation.json").exists()
    again = quick(out=out)
    assert verdicts(again) == verdicts(whole)
    for name, written in kept.items():  # what was done is not done again
        assert (out / "batches" / name).stat().st_mtime_ns == written
    assert len(list(out.glob("batches/*"))) > len(kept)
    assert verdicts(Evaluation.from_json((out / "evaluation.json").read_text())) == verdicts(whole)


def test_a_damaged_batch_is_done_again(tmp_path: Path) -> None:
    whole = quick(out=tmp_path)
    batch = sorted(tmp_path.glob("batches/*"))[0]
    batch.write_bytes(batch.read_bytes()[:-20])
    assert verdicts(quick(out=tmp_path)) == verdicts(whole)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 10}, "batch_size"),
        ({"n": 40}, "examples"),
        ({"attacks": (PGD,)}, "attacks"),
        ({"model": undefended(norm=True)}, "weights"),
    ],
)
def test_a_folder_of_another_run_is_refused(options: dict, what: str, tmp_path: Path) -> None:
    quick(out=tmp_path)
    with pytest.raises(OtherRun, match=what):
        quick(out=tmp_path, **options)
