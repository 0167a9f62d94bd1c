"""Whether to believe what gradient attacks say of a model."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from taser.attacks import Model, Threat
from taser.lock import locked
from taser.progress import Progress

from ..answers import device_of
from ..checks import character, check_data, check_model
from ..differentiable import differentiable
from ..prepare import prepare
from ..provenance import Provenance, hash_of_model, seeded
from ..store import Store
from ..trial import Trial
from .answers import gradients, logits, repeatable
from .black_box import decision_based, gradient_free, noise, transfer
from .reach import growing_epsilon, large_epsilon
from .result import Audit, Point
from .search import away_from_clean, longer, margin_probe, one_step, restarted
from .suspect import Suspect

CHECKS = (
    logits, repeatable, gradients, one_step, margin_probe, away_from_clean, longer, restarted,
    growing_epsilon, large_epsilon, noise, gradient_free, decision_based, transfer,
)  # fmt: skip
"""The questions, each a function of the suspect, in the order that they are asked."""

FEWEST = 30
"""Rightly classified examples, under which no check could fail or pass for a reason."""


class TooFewRight(ValueError):
    """The model gets too few of the examples right for an audit; more of them may do."""


def audit(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | None = None,
    surrogate: Model | None = None,
    steps: int = 50,
    restarts: int = 3,
    queries: int = 1000,
    seed: int = 0,
    batch_size: int = 250,
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """What the literature asks of a defence (Athalye et al., 2018; Carlini et al., 2019).

    model: (B, *) → logits (B, C); x: (n, *); y: (n,). Those examples are audited that the model
    gets right.

    threat
        What the claim to be audited is about; by default ℓ∞, 8/255.
    surrogate
        An undefended model of the same task; without one the transfer check is skipped.
    steps, restarts
        Of PGD; whether it has converged is judged by four times the steps and twice the starts.
    queries
        That each attack without gradients has for an example, or a little more.
    out
        A folder to keep finished batches in: killed and started again, it goes on where it was.

    A comparison fails if the attack that should be weaker breaks more than 2 % of the examples
    beyond those that the stronger one broke, and sampling error cannot explain it (exact binomial
    test, 1 %): a search that ends before it is done misses a few by luck.
    """
    threat = threat or Threat()
    device = device_of(model, x)
    x, y = x.detach().to(device), y.to(device)
    findings = check_data(x, y, threat)
    classes, odd = check_model(model, x, y)
    settings = {
        **asdict(Provenance.of(model, x, y, (), seed, batch_size)),
        "threat": asdict(threat),
        "oddities": character(odd),
        "surrogate": hash_of_model(surrogate) if surrogate else None,
        "attacks": {"steps": steps, "restarts": restarts, "queries": queries},
    }
    folder = None if out is None else Path(out)
    with seeded(x.device, seed), locked(folder / ".lock") if folder else nullcontext():
        quick = differentiable(prepare(model, x, y))
        trial = Trial(model, quick, x, y, seed, batch_size, Store(folder, settings))
        right = _of_right_answers(trial)
        suspect = Suspect(right, classes, threat, surrogate, steps, restarts, queries)
        checks = []
        for done, ask in enumerate(CHECKS):
            if progress:
                progress(done, len(CHECKS), f"audit: {ask.__name__.replace('_', ' ')}")
            checks.append(ask(suspect))
    curve = tuple(
        Point(epsilon, float(standing.float().mean()))
        for epsilon, standing in suspect.by_epsilon.items()
    )
    findings += [*odd, *suspect.findings.values()]
    return Audit(tuple(checks), curve, threat, suspect.n, len(y), tuple(findings), settings)


def _of_right_answers(trial: Trial) -> Trial:
    """The trial of those examples alone that the model gets right."""
    right = trial.right(trial.x, trial.y)
    if int(right.sum()) < FEWEST:
        raise TooFewRight(
            f"an audit takes at least {FEWEST} examples that the model gets right; it got "
            f"{int(right.sum())} of {len(right)}. Give it more"
        )
    return replace(trial, x=trial.x[right], y=trial.y[right])
