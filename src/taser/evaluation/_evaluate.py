"""Robust accuracy of any classifier, example by example, and its accuracy against ε."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from taser._files import Progress, write_atomically
from taser.attacks import Attack, AttackWarning, Model, RestartedPGD, Threat
from taser.attacks._autoattack import named_attack
from taser.attacks._random_models import EOT, VOTES, Votes
from taser.data._dataset import Standardisation, subset
from taser.stein._model_state import eval_mode

from ._attack_loop import AttackLoop, open_store, passes_of
from ._model_checks import (
    check_data,
    check_model,
    fix_buffers,
    oddities,
    replaced_stages,
    square_findings,
)
from ._record import Evaluation, Finding, Provenance, Verdicts, device_of, seeded
from ._regression import evaluate_regression

FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # times the threat's ε

ATTACKED_BY = ("autoattack", "spsa")


def evaluate(
    model: Model, x: Tensor, y: Tensor, *, threat: Threat | None = None,
    attacks: Sequence[str | Attack] = ATTACKED_BY, n: int = 1000, seed: int = 0,
    batch_size: int = 100, eot: int | None = None, targets: Standardisation | None = None,
    out: Path | str | None = None, progress: Progress | None = None,
) -> Evaluation:  # fmt: skip
    """Attack `model` on `n` of the examples x, (N, *), with labels y, (N,).

    threat: by default ℓ∞, 8/255, pixels in [0, 1]; attacks: names ("autoattack", "spsa", "pgd", …)
    or :class:`taser.attacks.Attack` objects; n: number of examples, drawn with a fixed seed, the
    same for every model; seed, batch_size: used by the attacks; the same values give the same
    record; progress: called with (done, total, label), counted in forward passes; eot: draws that
    each call of an attack averages, by default 20 for a model whose outputs change between calls;
    a verdict is then the majority of 100 draws, and a finding counts the uncertain verdicts.

    A regression (y in float32) gives a :class:`RegressionEvaluation`, by
    :func:`evaluate_regression`; targets: how its targets were standardised.

    out: a folder for finished batches, from which an evaluation that was killed resumes, and for
    evaluation.json and the adversarial inputs.

    Each attack runs on **every** example that is correct when clean; the worst case counts examples
    that are correct under all attacks. The model runs in eval mode and is not changed; attacks see
    a copy with BatchNorm folded, but the model itself gives the verdicts, and only points in the
    ball and in the box count.
    """
    if y.is_floating_point():
        chosen = ("pgd", "spsa") if tuple(attacks) == ATTACKED_BY else attacks
        return evaluate_regression(  # type: ignore[return-value]
            model, x, y, threat=threat, targets=targets, attacks=chosen, n=n, seed=seed,
            batch_size=batch_size, out=out, progress=progress,
        )  # fmt: skip
    threat = threat or Threat()
    if batch_size < 1:
        raise ValueError(f"batch_size should be at least 1; got {batch_size}")
    if len(y) != len(x):
        raise ValueError(f"x and y should have one row an example; got {len(x)} and {len(y)}")
    index = subset(len(x), n)
    device = device_of(model, x)
    x, y = x[index].detach().to(device), y[index].to(device)
    findings = check_data(x, y, threat)
    model = fix_buffers(model, x)
    classes, odd = check_model(model, x, y)
    plan = _plan(attacks, threat, classes, x.ndim == 4, seed)
    findings += [*odd, *replaced_stages(plan)]
    eot = eot or (EOT if "stochastic" in oddities(odd) else 1)
    provenance = Provenance.of(model, x, y, plan, seed, batch_size)
    settings = {
        **asdict(provenance), "threat": threat.numbers(), "examples": index.tolist(),
        "oddities": oddities(odd), **({"eot": eot} if eot > 1 else {}),
    }  # fmt: skip
    store = open_store(out, settings)
    loop = AttackLoop.of(model, x, y, seed, batch_size, store, eot=eot)
    clean, verdicts, x_adv = _run(loop, plan, findings, progress)
    if isinstance(loop.model, Votes):
        findings = [f for f in findings if f.name != "stochastic"] + [_majority(loop, x_adv, eot)]
    findings = list(dict.fromkeys(findings))
    record = (clean, verdicts, tuple(findings), provenance, x_adv)
    evaluation = Evaluation(threat, index, y.cpu(), *record)
    if store:
        content = save({"x": x_adv.contiguous()})
        write_atomically(store.folder / "attacked.safetensors", content)
        write_atomically(store.folder / "evaluation.json", evaluation.to_json() + "\n")
    return evaluation


def _majority(loop: AttackLoop, x_adv: Tensor, eot: int) -> Finding:
    """The number of uncertain verdicts of a random model at the attacked inputs."""
    with seeded(loop.x.device, loop.seed), eval_mode(loop.model, freeze=True):
        votes = torch.cat([loop.model(part.to(loop.x)) for part in x_adv.split(loop.batch_size)])
    right = votes.gather(1, loop.y[:, None])[:, 0].cpu()
    # 1.96 standard deviations of a share of ½
    unsure = int(((right - 0.5).abs() < 0.98 / VOTES**0.5).sum())
    message = (
        f"the model's outputs change between calls: attacks averaged {eot} draws, and a verdict is "
        f"the majority of {VOTES}; by chance alone {unsure} of {len(right)} could be otherwise "
        "(95 %)"
    )
    return Finding("stochastic", message)


def _plan(
    attacks: Sequence[str | Attack], threat: Threat, classes: int, images: bool, seed: int
) -> list[Attack]:
    plan = []
    for attack in attacks:
        if isinstance(attack, str):
            attack = named_attack(attack, threat, classes=classes, images=images, seed=seed)
        if not isinstance(attack, Attack):
            wanted = "a name or a taser.attacks.Attack, called with (model, x, y)"
            raise TypeError(f"an attack should be {wanted}; got {attack!r}")
        if attack.threat != threat:
            raise ValueError(f"{attack.name} attacks within {attack.threat}, not {threat}")
        plan.append(attack)
    names = [attack.name for attack in plan]
    if not plan or len(set(names)) < len(names):
        raise ValueError(f"attacks should be at least one, with different names; got {names}")
    return plan


def _run(
    loop: AttackLoop, plan: Sequence[Attack], findings: list[Finding], progress: Progress | None
) -> tuple[Tensor, dict[str, Verdicts], Tensor]:
    """Clean verdicts, verdicts of each attack, the input that broke each; adds findings."""
    with seeded(loop.x.device, loop.seed):
        clean = loop.correct(loop.x, loop.y).cpu()
    robust, x_adv = clean.clone(), loop.x.cpu().clone()
    verdicts: dict[str, Verdicts] = {}
    passes = [int(clean.sum()) * passes_of(attack) for attack in plan]
    done, total = 0, max(1, sum(passes))

    def report(step: int, _: int, label: str) -> None:
        if progress:
            progress(done + step, total, label)

    if progress:
        with seeded(loop.x.device, loop.seed):
            report(0, 0, f"clean {100 * float(clean.float().mean()):.1f} %; {loop.estimate(total)}")
    for attack, cost in zip(plan, passes, strict=True):
        found, points, more = loop.run(attack, clean, progress=report)
        done += cost
        verdicts[attack.name] = found
        newly_broken = robust & ~found.correct
        x_adv[newly_broken] = points[newly_broken]
        robust &= found.correct
        findings += [*more, *square_findings(found)]
    return clean, verdicts, x_adv


@dataclass(frozen=True)
class Curve:
    """Accuracy at each ε, the first of which is zero; n examples, `attack` by name."""

    epsilons: tuple[float, ...]
    accuracies: tuple[float, ...]
    attack: str
    n: int


def accuracy_curve(
    model: Model, x: Tensor, y: Tensor, *, threat: Threat | None = None,
    factors: Sequence[float] = FACTORS, attack: Callable[[Threat], Attack] | None = None,
    seed: int = 0, batch_size: int = 100, progress: Progress | None = None,
) -> Curve:  # fmt: skip
    """Accuracy under an attack at multiples of the threat's ε. x: (n, *); y: (n,).

    attack: by default PGD on the margin, 20 steps from 2 starts. An example broken at one ε counts
    as broken at larger ones. In ℓ∞, an ε beyond the box is left out.
    """
    threat = threat or Threat()
    make = attack or (lambda t: RestartedPGD(t, steps=20, restarts=2))
    boxed = threat.norm == "linf" and threat.low is not None and threat.high is not None
    largest = threat.reach(x) if boxed else math.inf
    epsilons = [e for factor in sorted(factors) if (e := threat.epsilon * factor) <= largest]
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)
    check_data(x, y, threat)
    model = fix_buffers(model, x)
    drawn = "stochastic" in oddities(check_model(model, x, y)[1])
    loop = AttackLoop.of(model, x, y, seed, batch_size, eot=EOT if drawn else 1)
    correct = loop.correct(x, y).cpu()
    accuracies = [int(correct.sum()) / len(x)]
    for step, epsilon in enumerate(epsilons, 1):
        wider = replace(threat, epsilon=epsilon)
        verdicts, _, findings = loop.run(make(wider), correct, key=f"curve {step}")
        for finding in dict.fromkeys(findings):
            warnings.warn(str(finding), AttackWarning, stacklevel=2)
        correct = verdicts.correct
        accuracies.append(verdicts.accuracy)
        if progress:
            progress(step, len(epsilons), f"{wider}, {100 * accuracies[-1]:.1f} %")
    return Curve((0.0, *epsilons), tuple(accuracies), make(threat).name, len(x))
