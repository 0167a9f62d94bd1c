"""The audit's checks: each measures a number and compares it with a limit."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from taser._files import Progress
from taser.attacks import (
    FGSM,
    SPSA,
    Attack,
    AutoAttackPart,
    RestartedPGD,
    Threat,
    TransferPGD,
    cross_entropy,
    input_gradient,
    margin,
)
from taser.attacks._attack import AttackLoss, check_positive
from taser.attacks._autoattack import TARGETS, without_square
from taser.attacks._pgd import outputs_and_gradient
from taser.attacks._simple import RandomNoise, RaySearch, Transfer
from taser.probes import Margin, looks_like_probabilities
from taser.stein._model_state import eval_mode

from ._attack_loop import AttackLoop, Differentiable, passes_of
from ._record import Finding, seeded

ALLOWED = 0.02  # share that only the weaker attack may break: no search is exhaustive
# Between losses: honest networks differ by some points, hidden gradients by tens. Not calibrated.
ALLOWED_LOSS = 0.10
SMALL_STEP = 1 / 30  # of ε
# Share of robust examples: at most 1 % for honest networks on digits, mostly over 29 % for masked.
ALLOWED_UNPREDICTED = 0.10
OVERFITTED_ABOVE, OVERFITTED_RATIO = 0.5, 3.0  # accuracy under one step, and how many times less
SIGNIFICANCE = 0.01  # a check fails if its count is less probable at the allowed share
ROUNDING = 1e-3  # of the logits' deviation: above what another order of a batch changes in float32
SPSA_STEPS = 32  # as in the paper; each takes two queries a sample
LOSSES: dict[str, AttackLoss] = {
    "cross-entropy": cross_entropy, "margin probe": Margin(), "margin": margin,
}  # fmt: skip
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # multiples of the threat's ε
LONGER = 4  # times as many steps, to see whether PGD has converged


@dataclass(frozen=True)
class Check:
    """The result of a check: what was measured, as text and as numbers, and why it matters."""

    name: str
    passed: bool | None  # None where the check was skipped, and `figure` then says why
    figure: str
    explanation: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> Literal["passed", "failed", "skipped"]:
        """The result in one word."""
        return "skipped" if self.passed is None else "passed" if self.passed else "failed"


def counted(
    n: int, count: int, what: str, *, allowed: float = ALLOWED, other: int | None = None
) -> Check:
    """Failed if count/n exceeds the allowed share significantly (one-sided exact binomial test).

    other: for two attacks of equal strength, `count` examples are broken by the first alone and
    `other` by the second alone. The test is then the exact sign test (McNemar's); the check also
    passes if the difference is at most the allowed share of n.
    """
    from scipy.stats import binom  # slow to import

    trials, share = (n, allowed) if other is None else (count + other, 0.5)
    p = float(binom.sf(count - 1, trials, share))
    passed = p >= SIGNIFICANCE or (other is not None and count - other <= allowed * n)
    numbers = {"count": count, "n": n, "allowed": allowed, "p": p}
    numbers |= {} if other is None else {"other": other}
    return Check("", passed, f"{count} of {n} ({100 * count / n:.1f} %) {what}", "", numbers)


@dataclass(eq=False)
class AuditTarget:
    """A model, n examples that it gets right, and the cached results of attacks on them.

    `after_…`: (n,) bool, the examples that are still correct. The name of an attack seeds it and
    names its stored batches. robust: (n,) bool, correct after every attack within the threat so
    far; passes: forward passes done, of `planned`; skipped passes count as done.
    """

    loop: AttackLoop
    classes: int
    threat: Threat
    surrogate: Any  # a model, in a rehearsal perhaps a function that trains one, or None
    steps: int
    restarts: int
    queries: int
    progress: Progress | None = None
    planned: int = 1
    passes: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    label: str = "audit"

    def __post_init__(self) -> None:
        self.robust = self.all_examples

    n = property(lambda self: len(self.loop.y))
    all_examples = property(lambda self: torch.ones(self.n, dtype=torch.bool))

    def after(self, attack: Attack, right: Tensor) -> Tensor:
        """Run an attack on the examples `right`, (n,) bool; the examples that stay correct."""
        cost = passes_of(attack) * self.n

        def report(step: int, total: int, label: str) -> None:
            if self.progress:
                done = self.passes + cost * step // max(total, 1)
                self.progress(done, self.planned, f"{self.label}: {label}")

        verdicts, _, findings = self.loop.run(attack, right, progress=report)
        self.passes += cost
        if attack.threat.epsilon <= self.threat.epsilon:
            self.robust = self.robust & ~(right & ~verdicts.correct)
        said = {finding.message for finding in self.findings.values()}
        for finding in findings:  # each message once
            if finding.message not in said:
                self.findings.setdefault(finding.name, finding)
        return verdicts.correct

    def after_pgd(
        self, name: str, right: Tensor, losses: Iterable[str] = LOSSES, **options: Any
    ) -> Tensor:
        """After PGD on each loss in turn; options: arguments of :class:`RestartedPGD`."""
        budget = dict[str, Any](threat=self.threat, steps=self.steps, restarts=self.restarts)
        for loss in losses:
            attack = RestartedPGD(name=f"{name} {loss}", loss=LOSSES[loss], **(budget | options))
            right = self.after(attack, right)
        return right

    @cached_property
    def after_cross_entropy(self) -> Tensor:
        """After PGD on cross-entropy, the usual evaluation."""
        return self.after_pgd("pgd", self.all_examples, ["cross-entropy"])

    @cached_property
    def after_probe(self) -> Tensor:
        """Then after PGD on the smooth margin, the probe of TASER's penalty."""
        return self.after_pgd("pgd", self.after_cross_entropy, ["margin probe"])

    @cached_property
    def after_losses(self) -> Tensor:
        """Then after PGD on the margin."""
        return self.after_pgd("pgd", self.after_probe, ["margin"])

    @cached_property
    def after_longer(self) -> Tensor:
        """Then after PGD on all three losses with four times the steps, from a new start."""
        return self.after_pgd("longer", self.after_losses, steps=LONGER * self.steps, restarts=1)

    @cached_property
    def after_restarts(self) -> Tensor:
        """After `after_losses`, PGD on all three losses from as many new random starts."""
        return self.after_pgd("restarted", self.after_losses)

    @cached_property
    def after_gradients(self) -> Tensor:
        """After all PGD attacks, and targeted APGD (which needs four classes)."""
        right = self.after_longer & self.after_restarts
        if self.classes < 4:
            return right
        return self.after(Budgeted("apgd-t", self.threat, self.loop.seed, budget=self.steps), right)

    @cached_property
    def after_epsilon(self) -> dict[float, Tensor]:
        """{ε: after PGD on every loss}, for multiples of the threat's ε, and the whole box."""
        box = self.threat.reach(self.loop.x)
        found = {self.threat.epsilon: self.after_losses}
        for epsilon in (*(e for f in FACTORS if (e := f * self.threat.epsilon) < box), box):
            if epsilon not in found:
                wider = replace(self.threat, epsilon=epsilon)
                found[epsilon] = self.after_pgd(f"ε={epsilon:g}", self.all_examples, threat=wider)
        return dict(sorted(found.items()))


class Rehearsal(AuditTarget):
    """Runs no attack; it counts forward passes, and raises for options that an attack refuses."""

    def after(self, attack: Attack, right: Tensor) -> Tensor:
        """`right` unchanged."""
        self.passes += passes_of(attack) * self.n
        return right


@dataclass(frozen=True)
class Budgeted(AutoAttackPart):
    """Square with `budget` queries, or targeted APGD with `budget` steps."""

    budget: int = 100
    passes = property(lambda self: self.budget * (1 if self.part == "square" else 3 * TARGETS))

    def __post_init__(self) -> None:
        check_positive(self, "budget")

    def _package(self, target: Any, x: Tensor) -> Any:
        package = super()._package(target, x)
        package.square.n_queries = package.apgd_targeted.n_iter = self.budget
        # The steps at which its step size is halved: the package's shares of all steps.
        for name, share in (("n_iter_2", 0.22), ("n_iter_min", 0.06), ("size_decr", 0.03)):
            setattr(package.apgd_targeted, name, max(int(share * self.budget), 1))
        return package


Measure = Callable[[AuditTarget], Check]
CHECKS: list[Measure] = []
"""The audit's checks in order, each a function of the :class:`AuditTarget`."""


def check(name: str) -> Callable[[Measure], Measure]:
    """Register a check under a name; its docstring is the explanation."""

    def decorate(measure: Measure) -> Measure:
        why = " ".join((measure.__doc__ or "").split())
        CHECKS.append(wraps(measure)(lambda t: replace(measure(t), name=name, explanation=why)))
        return CHECKS[-1]

    return decorate


def _broken(before: Tensor, after: Tensor) -> int:
    """The number of examples that are right before and not after. (n,), (n,)."""
    return int((before & ~after).sum())


# The model's outputs and gradients.


@check("outputs are logits")
def logits(target: AuditTarget) -> Check:
    """A softmax inside the model rounds away what cross-entropy is to climb; attack the logits."""
    z = _outputs(target, target.loop.x)
    finite = bool(torch.isfinite(z).all())
    probabilities = finite and looks_like_probabilities(z)
    what = "probabilities" if probabilities else "outputs"
    figure = f"{what} from {float(z.min()):.3g} to {float(z.max()):.3g}"
    return Check("", finite and not probabilities, figure, "")


@check("outputs repeat")
def repeatable(target: AuditTarget) -> Check:
    """Where outputs are random or depend on the rest of the batch, an attack has to average over
    that, which plain attacks do not."""
    x = target.loop.x
    return _compared(_outputs(target, x), _outputs(target, x.flip(0), seed=1).flip(0))


@check("outputs are the same with gradients")
def differentiated(target: AuditTarget) -> Check:
    """A model that notices that it is differentiated, and then gives other outputs, is attacked as
    one function and used as another."""
    inputs = (target.loop.x.clone().requires_grad_(wanted) for wanted in (False, True))
    others = [_outputs(target, x, differentiable=True) for x in inputs]
    return _compared(_outputs(target, target.loop.x), *others)


def _outputs(
    target: AuditTarget, x: Tensor, *, differentiable: bool = False, seed: int = 0
) -> Tensor:
    """Logits (B, C). seed: for a model that draws random numbers."""
    model, grad = Differentiable(target.loop.model), torch.set_grad_enabled
    with seeded(x.device, seed), eval_mode(model, freeze=True), grad(differentiable):
        return torch.cat([model(b).detach().float() for b in x.split(target.loop.batch_size)])


def _compared(outputs: Tensor, *others: Tensor) -> Check:
    change = max(float((outputs - other).abs().max()) for other in others)
    change /= max(float(outputs.std()), 1e-12)
    figure = f"outputs change by {change:.1g} of their standard deviation"
    return Check("", change <= ROUNDING, figure, "", {"change": change})


@check("gradients exist")
def gradients(target: AuditTarget) -> Check:
    """Where ∇CE at the example is zero, too small for a step or not finite (saturated softmax,
    rounded inputs), an attack does not move, and shows nothing about robustness."""
    loop, threat = target.loop, target.threat
    batches = zip(loop.x.split(loop.batch_size), loop.y.split(loop.batch_size), strict=True)
    with eval_mode(loop.prepared, freeze=True):
        gradient = torch.cat([input_gradient(loop.prepared, *b, cross_entropy) for b in batches])
    step = threat.ascent(gradient)  # of unit length, unless the gradient is too small
    length = threat.distance(step, torch.zeros_like(step))
    usable = gradient.flatten(1).isfinite().all(1) & (length > 0.5)
    return counted(target.n, int((~usable).sum()), "without a usable gradient")


# Gradient attacks are compared with each other.


@check("iterative beats one-step")
def one_step(target: AuditTarget) -> Check:
    """Many small steps search better than one large step, unless gradients mislead near the example
    (Athalye et al., 2018)."""
    left = target.after_cross_entropy
    stepped = target.after(FGSM(target.threat, name="one step"), target.all_examples)
    many, one = (float(right.float().mean()) for right in (left, stepped))
    if one > OVERFITTED_ABOVE and many < one / OVERFITTED_RATIO:
        what = f"{100 * one:.0f} % of the right answers are robust to one step (FGSM) and"
        message = f"{what} {100 * many:.0f} % to many, as after one-step adversarial training"
        name = "catastrophic overfitting"
        target.findings[name] = Finding(name, f"{message}; do not quote figures under one step")
    return counted(target.n, _broken(left, stepped), "broken by one step and not by many")


@check("adaptive attack on the margin")
def margin_probe(target: AuditTarget) -> Check:
    """A penalty on the margin could flatten the loss that is attacked and leave the decision where
    it was; the margin itself cannot saturate."""
    what = "broken by ascent of the margin probe and not of cross-entropy"
    count = _broken(target.after_cross_entropy, target.after_probe)
    return counted(target.n, count, what, allowed=ALLOWED_LOSS)


@check("started away from the example")
def random_start(target: AuditTarget) -> Check:
    """Training with one-step attacks often makes gradients that mislead only close to the data."""
    clean, random = (
        target.after_pgd(name, target.all_examples, random_start=start, restarts=1)
        for name, start in (("clean start", False), ("random start", True))
    )
    other = _broken(random, clean)
    what = f"broken only from a random point, {other} only from the example itself"
    return counted(target.n, _broken(clean, random), what, other=other)


@check(f"{LONGER}× more iterations")
def more_steps(target: AuditTarget) -> Check:
    """An attack that more steps would still improve has not converged, and the accuracy that it
    leaves is too high."""
    what = f"more broken by {LONGER * target.steps} steps than by {target.steps}"
    return counted(target.n, _broken(target.after_losses, target.after_longer), what)


@check("2× more restarts")
def more_restarts(target: AuditTarget) -> Check:
    """Where the starting point decides, the loss is too rugged for gradients to lead."""
    what = f"more broken by {2 * target.restarts} random starts than by {target.restarts}"
    return counted(target.n, _broken(target.after_losses, target.after_restarts), what)


@check("targeted attack")
def targeted(target: AuditTarget) -> Check:
    """APGD towards each wrong class with the DLR loss, which no scale of the logits changes, finds
    little that PGD missed unless the losses of PGD are flat or rugged."""
    if target.classes < 4:
        return Check("", None, f"targeted APGD needs four classes; there are {target.classes}", "")
    count = _broken(target.after_longer & target.after_restarts, target.after_gradients)
    what = "broken by targeted APGD and not by PGD"
    return counted(target.n, count, what, allowed=ALLOWED_LOSS)


@check("gradients predict the change of the margin")
def finite_difference(target: AuditTarget) -> Check:
    """For a small step the margin changes as its gradient predicts; where it does not (k-WTA, decoy
    gradients, noise made from the input), gradient attacks search another function."""
    loop, threat = target.loop, target.threat
    rows = target.after_gradients.nonzero()[:, 0].to(loop.x.device)
    if len(rows) == 0:
        return Check("", True, "gradient attacks left no example to look at", "")
    # Not at the examples: flat or rounded pixels lie on kinks.
    around = threat.random(loop.x[rows], torch.Generator(loop.x.device).manual_seed(loop.seed))
    count = 0
    with eval_mode(loop.prepared, freeze=True):
        parts = around.split(loop.batch_size), loop.y[rows].split(loop.batch_size)
        for x, y in zip(*parts, strict=True):
            outputs, gradient = outputs_and_gradient(loop.prepared, x, y, margin)
            up = threat.into_box(x + SMALL_STEP * threat.epsilon * threat.ascent(gradient))
            predicted = (gradient * (up - x)).flatten(1).sum(1)
            with torch.no_grad():
                change = margin(loop.prepared(up), y) - margin(outputs, y)
            count += int((~((change - predicted).abs() < 0.5 * predicted)).sum())
    what = f"robust examples where a step of {SMALL_STEP:.2f} ε changes it otherwise by half"
    found = counted(len(rows), count, what, allowed=ALLOWED_UNPREDICTED)
    return replace(found, numbers={**found.numbers, "share_predicted": 1 - count / len(rows)})


@check("success rises with ε")
def growing_epsilon(target: AuditTarget) -> Check:
    """A larger ball holds the smaller one, so an attack that works breaks no less in it."""
    masks = list(target.after_epsilon.values())
    curve = ", ".join(f"{100 * float(right.float().mean()):.0f}" for right in masks)
    count = max(_broken(larger, smaller) for smaller, larger in pairwise(masks))
    what = f"broken by a smaller ε and not by the next; accuracy {curve} %"
    return counted(target.n, count, what)


@check("a large ε breaks everything")
def large_epsilon(target: AuditTarget) -> Check:
    """At this ε every input can be turned into every other, so no classifier is robust; an attack
    that does not break all examples follows misleading gradients."""
    if target.threat.has_fixed:
        return Check(
            "", None, "some features are fixed, so no ε turns every input into another", ""
        )
    epsilon, right = list(target.after_epsilon.items())[-1]
    what = f"still right at {replace(target.threat, epsilon=epsilon)}"
    return counted(target.n, int(right.sum()), what)


# Attacks without the model's gradients should break nothing that gradient attacks did not.


def _beyond_gradients(target: AuditTarget, what: str, *plan: Attack) -> Check:
    right = target.after_gradients
    for attack in plan:
        right = target.after(attack, right)
    what = f"broken by {what} and by no gradient attack"
    return counted(target.n, _broken(target.after_gradients, right), what)


@check("random noise")
def noise(target: AuditTarget) -> Check:
    """Random search is the weakest attack: what it finds, gradients should find."""
    attack = RandomNoise(target.threat, target.queries)
    return _beyond_gradients(target, f"{target.queries} random points", attack)


@check("gradient-free attacks")
def gradient_free(target: AuditTarget) -> Check:
    """They see outputs only, and cannot be misled by gradients; where they win, gradients hide what
    is there (Uesato et al., 2018)."""
    spsa = SPSA(target.threat, SPSA_STEPS, target.queries // (2 * SPSA_STEPS) + 1)
    if without_square(target.threat, target.loop.x.ndim == 4):
        return _beyond_gradients(target, "SPSA", spsa)
    square = Budgeted("square", target.threat, target.loop.seed, budget=target.queries)
    return _beyond_gradients(target, "SPSA or Square", spsa, square)


@check("decision-based attack")
def decision_based(target: AuditTarget) -> Check:
    """A search that sees the predicted class alone (ray search, Chen & Gu, 2020) is not misled by
    saturated or rounded outputs either."""
    return _beyond_gradients(target, "ray search", RaySearch(target.threat, target.queries))


@check("transfer from an undefended model")
def transfer(target: AuditTarget) -> Check:
    """Examples are made for another model, without this one; if they still break more than attacks
    with this model's gradients, the gradients are masked (Papernot et al., 2017)."""
    if target.surrogate is None:
        return Check("", None, "no surrogate model was given", "")
    transfers = []
    for name, loss in LOSSES.items():
        made = TransferPGD(target.threat, target.steps, target.restarts, loss=loss)
        transfers.append(Transfer(made, target.surrogate, name=f"transfer {name}"))
    return _beyond_gradients(target, "transfer", *transfers)
