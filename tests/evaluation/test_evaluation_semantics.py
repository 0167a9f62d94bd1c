"""Accuracy of each attack and stage, findings, and when two records are equal."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attacks.victims import digits, undefended
from taser.attacks import (
    FGSM,
    SPSA,
    AttackWarning,
    Cascade,
    RestartedPGD,
    Threat,
    autoattack,
)
from taser.evaluation import Evaluation, evaluate
from taser.evaluation._attack_loop import FolderConflict
from taser.evaluation._model_checks import replaced_stages

THREAT = Threat("linf", 0.1)
PGD = RestartedPGD(THREAT, steps=10, restarts=2)
QUICK_SPSA = SPSA(THREAT, iterations=5, samples=16)


def verdicts(evaluation: Evaluation) -> dict:
    """A record without its times."""
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


def test_each_attack_has_an_accuracy_of_its_own() -> None:
    both, alone = quick(), quick(attacks=(QUICK_SPSA,))
    assert torch.equal(both.attacks["spsa"].correct, alone.attacks["spsa"].correct)


def test_stages_of_a_cascade_share_the_work_and_are_recorded_separately() -> None:
    cascade = Cascade("cascade", (FGSM(THREAT), PGD))
    found = quick(attacks=(cascade,)).attacks["cascade"]
    first = quick(attacks=(FGSM(THREAT),)).attacks["fgsm"]
    assert torch.equal(found.stage == 0, first.stage == 0)
    assert (found.stage == 1).any()
    after = found.after(quick(attacks=("fgsm",)).clean)
    assert list(after) == ["fgsm", "pgd"]
    assert after["fgsm"] == first.accuracy
    assert after["pgd"] == found.accuracy


def test_the_same_seed_gives_the_same_record_and_the_model_is_left_alone() -> None:
    model = copy.deepcopy(undefended(norm=True)).train()
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    one = quick(model)
    assert verdicts(one) == verdicts(quick(model))
    other = quick(model, seed=1)
    assert verdicts(one)["attacks"] != verdicts(other)["attacks"]
    assert torch.equal(one.index, other.index)  # the examples are the same for every seed
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


class Talkative(FGSM):
    def __call__(self, model, x, y, *, generator=None) -> Tensor:
        warnings.warn("gradients look odd", AttackWarning, stacklevel=2)
        return super().__call__(model, x, y, generator=generator)


def test_warnings_of_attacks_become_findings_once() -> None:
    found = quick(attacks=(Talkative(THREAT),))
    assert [str(f) for f in found.findings] == ["fgsm: gradients look odd"]


def test_replaced_attacks_are_reported() -> None:
    (finding,) = replaced_stages([autoattack(THREAT, classes=2)])
    assert "PGD on the margin" in finding.message


def test_nothing_to_attack_is_no_error() -> None:
    x, y = digits(20)
    found = evaluate(undefended(), x, (y + 1) % 10, threat=THREAT, attacks=(PGD,))
    assert found.clean_accuracy == found.robust_accuracy == 0.0


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
    with pytest.raises(FolderConflict, match=what):
        quick(out=tmp_path, **options)
