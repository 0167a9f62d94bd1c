"""An evaluation: what it counts, what it refuses, and that a killed one goes on."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import taser
from attacks.victims import digits, linear, undefended
from taser.attacks import (
    FGSM,
    PGD,
    SPSA,
    Attack,
    AutoAttackPart,
    Cascade,
    Model,
    RandomNoise,
    RaySearch,
    RestartedPGD,
    Threat,
    Transfer,
    margin,
)
from taser.evaluation import Evaluation, audit, compare
from taser.evaluation._attack_loop import BatchResult, BatchStore, FolderConflict, prepare
from taser.evaluation._corruptions import shift
from taser.evaluation._evaluate import accuracy_curve
from taser.evaluation._record import device_of
from taser.models import Wrapped
from taser.models._copies import FoldedModel

THREAT = Threat("linf", 0.1)
QUICK = ("fgsm", "pgd", "noise")


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return taser.evaluate(undefended(), *digits(60), threat=THREAT, attacks=QUICK, n=40)


def test_the_record_says_what_happened_to_each_example(found: Evaluation) -> None:
    x, y = digits(60)
    with torch.no_grad():
        right = undefended()(x[found.index]).argmax(1) == y[found.index]
    assert torch.equal(found.clean, right)
    assert found.n == len(found.index) == 40
    pgd = found.attacks["pgd"]
    assert not bool((pgd.correct & ~found.clean).any())
    assert bool((pgd.distance <= THREAT.epsilon * (1 + 1e-5)).all())
    assert bool((pgd.distance[found.clean & ~pgd.correct] > 0).all())
    assert torch.equal(
        found.robust, torch.stack([v.correct for v in found.attacks.values()]).all(0)
    )
    assert found.robust_accuracy <= min(found.accuracy(name) for name in QUICK)


def test_the_points_that_broke_it_break_it(found: Evaluation) -> None:
    x, _ = digits(60)
    assert found.x_adv is not None
    broken = found.clean & ~found.robust
    assert bool(broken.any())
    with torch.no_grad():
        answers = undefended()(found.x_adv).argmax(1)
    assert bool((answers[broken] != found.y[broken]).all())
    assert bool((THREAT.distance(found.x_adv, x[found.index]) <= 0.1 + 1e-6).all())
    assert 0 <= float(found.x_adv.min()) <= float(found.x_adv.max()) <= 1


def test_it_survives_json(found: Evaluation) -> None:
    again = Evaluation.from_json(found.to_json())
    assert json.loads(again.to_json()) == json.loads(found.to_json())
    with pytest.raises(ValueError, match="not a record"):
        Evaluation.from_json("{}")


def test_records_of_the_first_format_load(found: Evaluation) -> None:
    old = json.loads(found.to_json()) | {"format": 1, "paper_average": None}
    for verdicts in old["attacks"].values():
        verdicts["standing"] = verdicts.pop("correct")
    again = Evaluation.from_json(json.dumps(old))
    assert json.loads(again.to_json()) == json.loads(found.to_json())


def test_an_attack_that_cheats_is_not_counted() -> None:
    class Cheat:
        name, threat = "cheat", THREAT

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object) -> Tensor:  # noqa: ARG002
            return torch.rand_like(x)  # far outside the ball

    result = taser.evaluate(
        undefended(),
        *digits(30),
        threat=THREAT,
        attacks=[Cheat()],
        n=30,  # type: ignore[list-item]
    )
    assert torch.equal(result.attacks["cheat"].correct, result.clean)
    assert any("cheat" in finding.name for finding in result.findings)


def test_models_are_compared_on_the_same_examples_only(found: Evaluation) -> None:
    other = taser.evaluate(undefended(norm=True), *digits(60), threat=THREAT, attacks=QUICK, n=40)
    table = compare({"one": found, "two": other})
    assert set(table.rows) == {"one", "two"}
    fewer = taser.evaluate(undefended(), *digits(60), threat=THREAT, attacks=("fgsm",), n=10)
    with pytest.raises(ValueError, match="on other examples"):
        compare({"one": found, "fewer": fewer})


def test_the_prepared_model_is_the_same_function_and_the_users_is_untouched() -> None:
    x, y = digits(32)
    model = undefended(norm=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ready = prepare(model, x, y)
    assert isinstance(ready.inner, FoldedModel)  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


class Answers(nn.Module):
    """A network whose answers are spoilt by `spoil`."""

    def __init__(self, spoil: str) -> None:
        super().__init__()
        self.inner, self.spoil = undefended(), spoil

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        if self.spoil == "probabilities":
            return z.softmax(1)
        if self.spoil == "nan":
            return torch.where(x.flatten(1).sum(1, keepdim=True) > 0, torch.nan, z)
        if self.spoil == "stochastic":
            return z + torch.randn_like(z)
        return z[:, 0]


@pytest.mark.parametrize("spoil", ["probabilities", "stochastic"])
def test_odd_answers_are_findings(spoil: str) -> None:
    result = taser.evaluate(Answers(spoil), *digits(20), threat=THREAT, attacks=("noise",), n=20)
    assert spoil in {finding.name for finding in result.findings}


def test_a_model_in_train_mode_gives_a_finding_and_stays_in_train_mode() -> None:
    model = Answers("none").train()
    model.spoil = ""
    model.forward = model.inner.forward  # type: ignore[method-assign]
    result = taser.evaluate(model, *digits(20), threat=THREAT, attacks=("noise",), n=20)
    assert "train mode" in {finding.name for finding in result.findings}
    assert model.training
    undefended().eval()


WRONG = [
    ({"x": 2.0}, r"\[0, 1\]"),
    ({"x": torch.nan}, "finite"),
    ({"y": 10}, "0…9"),
    ({"spoil": "nan"}, "NaN or infinity"),
    ({"spoil": "one"}, "one number an example"),
    ({"attacks": ("autoatack",)}, "autoattack"),
    ({"attacks": ()}, "at least one, with different names"),
    ({"batch_size": 0}, "batch_size"),
    ({"threat": Threat("l2", 100.0)}, "100/255"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_bad_input_is_refused(change: dict, message: str) -> None:
    x, y = (tensor.clone() for tensor in digits(20))
    if "x" in change:
        x[0, 0, 0, 0] = change.pop("x")
    if "y" in change:
        y[0] = change.pop("y")
    model = Answers(change.pop("spoil")) if "spoil" in change else undefended()
    options = {"threat": THREAT, "attacks": ("noise",), "n": 20, **change}
    with pytest.raises(ValueError, match=message):
        taser.evaluate(model, x, y, **options)


def test_pixels_instead_of_fractions() -> None:
    with pytest.raises(ValueError, match="did you mean 8/255"):
        Threat("linf", 8.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_inputs_of_another_precision_are_evaluated(dtype: torch.dtype) -> None:
    x, y = digits(20)
    model = copy.deepcopy(undefended()).to(dtype)
    found = taser.evaluate(model, x.to(dtype), y, threat=THREAT, attacks=("fgsm", "noise"), n=20)
    assert found.robust_accuracy < found.clean_accuracy
    rounding = 2 * torch.finfo(dtype).eps
    assert bool((found.attacks["fgsm"].distance <= THREAT.epsilon + rounding).all())


def test_the_device_is_that_of_the_weights() -> None:
    x, far = torch.rand(2, 3), nn.Linear(3, 2, device="meta")
    without_parameters = nn.BatchNorm1d(3, affine=False, device="meta")
    for model in (far, Wrapped(lambda x: far(x), far), without_parameters):
        assert device_of(model, x).type == "meta"
    assert device_of(Wrapped(torch.sin), x) == x.device


@pytest.mark.parametrize("measure", [taser.evaluate, accuracy_curve, audit])
def test_a_function_has_to_be_wrapped(measure: Callable) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module.*taser\.models\.Wrapped"):
        measure(lambda x: undefended()(x), *digits(40))


@pytest.mark.parametrize(
    ("module", "measure"),
    [
        ("_evaluate", taser.evaluate),
        ("_evaluate", accuracy_curve),
        ("_corruptions", shift),
        ("_audit", audit),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_examples_go_where_the_weights_are(
    module: str, measure: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device simulates a GPU: its tensors hold no numbers."""
    place = import_module(f"taser.evaluation.{module}")
    monkeypatch.setattr(place, "device_of", lambda *_: torch.device("meta"))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        measure(undefended(), *digits(40))


def test_outliers_of_a_table_do_not_overstate_robustness() -> None:
    model, x = linear(2), torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    x[:2] = torch.tensor([[100.0], [-100.0]])
    with torch.no_grad():
        z, width = model(x), float((model.weight[0] - model.weight[1]).abs().sum())
    certain = float(((z[:, 0] - z[:, 1]).abs() > 0.3 * width).float().mean())
    threat = Threat("linf", 0.3, None, None)
    found = taser.evaluate(model, x, z.argmax(1), threat=threat, attacks=("apgd-ce",))
    assert found.robust_accuracy == pytest.approx(certain)
    assert not any("outside" in finding.name for finding in found.findings)


KILLED = """
import os, signal, sys, torch
sys.path.insert(0, sys.argv[2])
from attacks.victims import digits, undefended
import taser
from taser.attacks import RestartedPGD, Threat
threat = Threat("linf", 0.05)
reported = []
def progress(*_):
    reported.append(1)
    if len(sys.argv) > 3 and len(reported) == 5:  # in the middle of the batches
        os.kill(os.getpid(), signal.SIGKILL)
taser.evaluate(undefended(), *digits(60), threat=threat, n=60, batch_size=3, out=sys.argv[1],
               attacks=[RestartedPGD(threat, steps=20, restarts=2)], progress=progress)
"""


def test_killed_and_started_again_it_gives_the_same_record(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", KILLED]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = [*command, str(tmp_path / "killed"), tests, "kill"]
    assert subprocess.run(killed, env=environment).returncode == -signal.SIGKILL
    assert list((tmp_path / "killed" / "batches").glob("*.safetensors"))
    assert not (tmp_path / "killed" / "evaluation.json").exists()
    for name in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / name), tests], env=environment, check=True)
    first, second = (
        json.loads((tmp_path / name / "evaluation.json").read_text())
        for name in ("killed", "whole")
    )
    for record in (first, second):
        for verdicts in record["attacks"].values():
            verdicts.pop("seconds")
    assert first == second


def test_a_folder_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    options = {"threat": THREAT, "attacks": ("noise",), "out": tmp_path}
    taser.evaluate(undefended(), *digits(20), n=20, **options)
    with pytest.raises(FolderConflict, match="weights"):
        taser.evaluate(undefended(norm=True), *digits(20), n=20, **options)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(ValueError, match=r"settings\.json should hold a JSON object"):
        taser.evaluate(undefended(), *digits(20), n=20, **options)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(FolderConflict, match=r"batches without their settings\.json"):
        taser.evaluate(undefended(norm=True), *digits(20), n=20, **options)


def test_the_same_weights_used_in_another_way_are_another_model(tmp_path: Path) -> None:
    options = {"threat": THREAT, "attacks": ("noise",), "out": tmp_path, "n": 20}
    model = undefended()
    for _ in range(2):
        taser.evaluate(Wrapped(lambda x: model(x), model), *digits(20), **options)
    with pytest.raises(FolderConflict, match="answers"):
        taser.evaluate(Wrapped(lambda x: -model(x), model), *digits(20), **options)


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int, str]] = []
    attack = RestartedPGD(THREAT, steps=3, restarts=1)
    taser.evaluate(
        undefended(), *digits(30), threat=THREAT, attacks=[attack], n=30, batch_size=10,
        progress=lambda *said: seen.append(said),
    )  # fmt: skip
    assert re.fullmatch(r"clean \d+\.\d %; about \d+ s, less if .* early", seen[0][2])
    done = [step for step, _, _ in seen]
    assert done == sorted(done)
    assert seen[-1][0] <= seen[-1][1]


def by_numpy(f: Model, x: Tensor) -> Tensor:
    """As a wrapper of another library's model does."""
    return f(torch.from_numpy(x.numpy())).detach()


@torch.inference_mode()
def by_inference(f: Model, x: Tensor) -> Tensor:
    return f(x)


@pytest.mark.parametrize(
    "cut", [lambda f, x: f(x).detach(), lambda f, x: f(x.detach()), by_numpy, by_inference]
)
def test_a_model_that_hides_its_gradient_is_evaluated_all_the_same(cut: Callable) -> None:
    inner, (x, y) = undefended(), digits(30)
    model = Wrapped(lambda x: cut(inner, x), inner)
    found = taser.evaluate(model, x, y, threat=THREAT, attacks=("autoattack", "spsa"), n=30)
    stages = found.attacks["autoattack"].after(found.clean)
    assert "no gradient" in [finding.name for finding in found.findings]
    assert stages["square"] < stages["fab-t"]
    assert found.accuracy("spsa") < found.clean_accuracy
    curve = accuracy_curve(model, x, y, threat=THREAT, factors=(1,))
    assert curve.accuracies[0] == found.clean_accuracy


def noisy(x: Tensor) -> Tensor:
    """Answers that change between calls, by global randomness."""
    z = undefended()(x)
    return z + 2 * torch.randn_like(z)


def test_a_random_model_gets_the_same_verdicts_again(tmp_path: Path) -> None:
    """By every stage of AutoAttack, in one run or resumed from a folder."""
    x, y = digits(60)
    options = {"threat": THREAT, "attacks": ("fab-t", "pgd"), "n": 60, "batch_size": 20, "eot": 2}
    found = []
    for seed, out in ((1, None), (2, tmp_path), (3, tmp_path)):
        torch.manual_seed(seed)
        found.append(taser.evaluate(Wrapped(noisy, undefended()), x, y, out=out, **options))  # type: ignore[arg-type]
    assert found[0].clean.equal(found[1].clean)
    for other in found[1:]:
        assert other.robust.equal(found[0].robust)
        assert other.x_adv is not None
        assert bool((THREAT.distance(other.x_adv, x[other.index]) <= 0.1 + 1e-6).all())


def test_a_stored_batch_of_other_rows_is_done_again(tmp_path: Path) -> None:
    store = BatchStore(tmp_path, {})
    rows = torch.arange(3)
    store.put("a", BatchResult(rows, rows > 0, rows.float(), torch.rand(2, 4), (), 1.0))
    assert store.get("a", rows) is not None
    assert store.get("a", rows + 1) is None


def test_records_of_a_model_without_gradient_are_not_reused(tmp_path: Path) -> None:
    """The repaired model has the same weights and answers, and is not as robust."""
    inner, (x, y) = undefended(), digits(30)
    options = {"threat": THREAT, "attacks": ("pgd",), "n": 30, "out": tmp_path}
    taser.evaluate(Wrapped(lambda x: inner(x).detach(), inner), x, y, **options)  # type: ignore[arg-type]
    with pytest.raises(FolderConflict, match="oddities"):
        taser.evaluate(Wrapped(lambda x: inner(x), inner), x, y, **options)  # type: ignore[arg-type]


def test_a_custom_attack_is_identified_by_its_options(tmp_path: Path) -> None:
    class Mine:
        name = "mine"
        threat = THREAT

        def __init__(self, steps: int) -> None:
            self.steps = steps

        def __call__(
            self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
        ) -> Tensor:
            return RestartedPGD(THREAT, steps=self.steps)(model, x, y, generator=generator)

    for steps in (1, 20):
        with nullcontext() if steps == 1 else pytest.raises(FolderConflict, match="attacks"):
            taser.evaluate(
                undefended(), *digits(30), threat=THREAT, attacks=[Mine(steps)], n=30, out=tmp_path
            )


@dataclass(frozen=True)
class Darker:
    """An attack of one's own."""

    threat: Threat = THREAT
    name: str = "darker"

    def __call__(self, model: Model, x: Tensor, y: Tensor, **_: object) -> Tensor:  # noqa: ARG002
        return self.threat.project(x - self.threat.epsilon, x)


def test_every_attack_can_be_evaluated() -> None:
    attacks = [
        PGD(THREAT), PGD(THREAT, steps=3, loss=margin), FGSM(THREAT), Darker(),
        SPSA(THREAT, iterations=2, samples=4), RandomNoise(THREAT, samples=2), RaySearch(THREAT, 5),
        RestartedPGD(THREAT, steps=2, restarts=1), Transfer(PGD(THREAT), undefended(norm=True)),
        AutoAttackPart("apgd-ce", THREAT),
        Cascade("two", (FGSM(THREAT), PGD(THREAT))),
    ]  # fmt: skip
    assert all(isinstance(attack, Attack) for attack in attacks)
    found = taser.evaluate(undefended(), *digits(30), threat=THREAT, attacks=attacks, n=30)
    assert list(found.attacks)[:4] == ["pgd-10", "pgd-3", "fgsm", "darker"]
    assert found.accuracy("pgd-10") < found.accuracy("darker") <= found.clean_accuracy
    assert found.accuracy("two") <= found.accuracy("fgsm")
    assert "loss=margin" in found.provenance.attacks["pgd-3"]


@pytest.mark.parametrize("attack", [PGD, THREAT, lambda _model, x, _y: x])
def test_what_is_no_attack_is_refused(attack: object) -> None:
    with pytest.raises(TypeError, match=r"taser\.attacks\.Attack"):
        taser.evaluate(undefended(), *digits(8), threat=THREAT, attacks=[attack])  # type: ignore[list-item]


def test_images_with_channels_innermost_are_kept(tmp_path: Path) -> None:
    x, y = digits(20)
    colour = x.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    found = taser.evaluate(
        model, colour, y, threat=THREAT, attacks=["fgsm"], n=20, out=tmp_path / "found"
    )
    assert (tmp_path / "found" / "attacked.safetensors").exists()
    assert found.x_adv is not None


def test_an_attack_that_was_used_is_still_the_same_attack() -> None:
    attack = RestartedPGD(THREAT, steps=2, restarts=1, loss=taser.probes.Margin())
    both = {
        name: taser.evaluate(undefended(), *digits(20), threat=THREAT, attacks=[attack], n=20)
        for name in ("one", "other")
    }
    assert "pgd" in compare(both).columns


def test_square_on_vectors_in_l2_is_refused() -> None:
    model, x = nn.Linear(4, 10), torch.rand(8, 4)
    threat = Threat("l2", 0.5)
    with pytest.raises(ValueError, match="for images"):
        taser.evaluate(model, x, torch.arange(8), threat=threat, attacks=["square"], n=8)
