"""One wrong argument at a time, to every public callable: it works, or the error says why not.

An error is right if it is a TypeError or a ValueError (or one of taser's own) that is raised in
taser's code, or in the call itself (a missing argument), and that names the argument or says what
was wanted.
"""

import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taser
from taser import attacks, data, evaluation, models, objectives, probes, regularisers, scores
from taser.stein import UnsupportedLayer, directions, identities

SOURCE = str(Path(taser.__file__).parent)
RIGHT = (TypeError, ValueError, FileNotFoundError, UnsupportedLayer, data.FetchError)
WORDS = re.compile(
    r"failed with .* = |should|needs?\b|want|; got|ship for|got an unexpected|there (is|are) no|"
    r"takes?\b|(is|are) not|one of|at least|at most|too few|has (no|\d)|holds|give\b|only|missing"
)
VALUES: dict[str, Any] = {
    "None": None, "NaN": float("nan"), "inf": float("inf"), "negative": -1, "zero": 0, "half": 0.5,
    "string": "nonsense", "list": [1, 2], "dict": {"a": 1}, "object": object(), "type": int,
    "function": lambda *_: None, "huge": 10**30, "true": True,
}  # fmt: skip


def tensors(given: Tensor) -> dict[str, Any]:
    """Wrong tensors in the place of a right one."""
    nan, huge, signed = given.clone(), given.clone(), given * 1  # a mask has no negative
    if given.is_floating_point():
        nan.view(-1)[0], huge.view(-1)[0] = float("nan"), float("inf")
    return {
        "numpy": given.numpy(), "as list": given.tolist(), "uint8": given.to(torch.uint8),
        "float64": given.double(), "float16": given.half(), "complex": given.to(torch.complex64),
        "bool": given.bool(), "int32": given.int(), "a row less": given[:-1], "empty": given[:0],
        "one dimension more": given[None], "a number": torch.tensor(1.0), "with NaN": nan,
        "with inf": huge, "negative entries": -signed - 1, "far out": given * 1000 + 1000,
        "flat": given.flatten(), "first entry": given.flatten()[:1],
    }  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3
FLAT = X.flatten(1)
THREAT = attacks.Threat("linf", 0.1)
GAUSSIAN = scores.Gaussian(torch.full((16,), 0.5), 0.1)
FIELD = scores.DenoisingScore(lambda x, _: x * 0.9, 0.1)
F = Callable[..., Any]


def subjects() -> Iterator[tuple[str, F, dict[str, Any], F]]:
    """Name, callable, right arguments, and what is then done with what it returns."""

    def ignored(_: Any) -> None:
        pass

    def on_batch(found: Any) -> None:
        found(network(), X, Y)

    def at_x(found: Any) -> None:
        found(X)

    yield "Taser", taser.Taser, {
        "score": FIELD, "threat": THREAT, "form": "steepest", "probe": probes.Margin(),
        "operator": "langevin", "center": "none", "backend": "auto", "probes": 1, "step": 0.01,
        "unbiased": False, "every": 1, "fraction": 1.0, "batchnorm": "auto", "generator": None,
        "seed": 0, "normalisation": (0.0, 1.0),
    }, on_batch  # fmt: skip
    yield (
        "Taser()",
        taser.Taser(FIELD, threat=THREAT),
        {"model": network(), "x": X, "y": Y},
        ignored,
    )
    yield "SteinPenalty", taser.SteinPenalty, {
        "probe": probes.Margin(), "operator": "langevin", "backend": "auto", "probes": 1,
        "distribution": "rademacher", "step": 0.01, "chunk": 2, "center": "batch",
        "detach_mean": True, "momentum": 0.9, "unbiased": False, "every": 1, "fraction": 1.0,
        "batchnorm": "auto", "generator": None, "seed": 0,
    }, lambda penalty: penalty(network(), X, Y, -X)  # fmt: skip
    yield "SteinPenalty()", taser.SteinPenalty(), {
        "model": network(), "x": X, "y": Y, "s": -X
    }, ignored  # fmt: skip
    yield "stein_residual", taser.stein_residual, {
        "f": lambda x: network()(x)[:, 0], "x": X, "s": -X, "operator": "langevin",
        "backend": "reverse", "probes": 1, "distribution": "rademacher", "generator": None,
        "step": None, "chunk": None,
    }, ignored  # fmt: skip
    yield "GradientNorm", regularisers.GradientNorm, {
        "norm": "l2", "of": "margin", "every": 1, "fraction": 1.0, "batchnorm": "auto", "seed": 0
    }, on_batch  # fmt: skip
    yield "GradientNorm()", regularisers.GradientNorm(), {
        "model": network(), "x": X, "y": Y
    }, ignored  # fmt: skip
    yield "Jacobian", regularisers.Jacobian, {"projections": 1, "fraction": 1.0}, on_batch
    yield "Jacobian()", regularisers.Jacobian(), {"model": network(), "x": X, "y": Y}, ignored
    yield (
        "Threat",
        attacks.Threat,
        {"norm": "linf", "epsilon": 0.1, "low": 0.0, "high": 1.0},
        (ignored),
    )
    for attack, more in (
        (attacks.FGSM, {}), (attacks.PGD, {"steps": 1, "step_size": 0.1, "start": "random"}),
        (attacks.RestartedPGD, {"steps": 1, "restarts": 1, "step_size": 0.1}),
        (attacks.SPSA, {"iterations": 1, "samples": 2, "delta": 0.01, "step_size": 0.1,
                        "rule": "adam", "chunk": 64}),
        (attacks.RandomNoise, {"samples": 1}), (attacks.RaySearch, {"trials": 2}),
    ):  # fmt: skip
        yield attack.__name__, attack, {"threat": THREAT, "name": "a", **more}, on_batch
        yield f"{attack.__name__}()", attack(THREAT, **more), {
            "model": network(), "x": X, "y": Y, "generator": None
        }, ignored  # fmt: skip
    yield "autoattack", attacks.autoattack, {
        "threat": THREAT, "classes": 3, "images": True, "seed": 0
    }, ignored  # fmt: skip
    for loss in (attacks.cross_entropy, attacks.margin):
        yield loss.__name__, loss, {"logits": torch.rand(6, 3), "y": Y}, ignored
    inner = attacks.PGD(THREAT, steps=1)
    for objective, more in (
        (objectives.Standard, {"task": "classification", "label_smoothing": 0.1}),
        (objectives.PGD, {"inner": inner, "task": "classification", "label_smoothing": 0.1}),
        (objectives.TRADES, {"inner": inner, "beta": 6.0}),
        (objectives.MART, {"inner": inner, "weight": 5.0}),
    ):
        yield objective.__name__, objective, more, lambda found: found(network(), X, Y)
        yield f"{objective.__name__}()", objective(**more), {
            "model": network(), "x": X, "y": Y, "generator": None
        }, ignored  # fmt: skip
    yield (
        "Gaussian",
        scores.Gaussian,
        {"mean": torch.full((16,), 0.5), "cov": 0.1},
        lambda p: p(FLAT),
    )
    yield "GaussianMixture", scores.GaussianMixture, {
        "means": FLAT[:2], "cov": 0.1, "weights": torch.tensor([0.5, 0.5])
    }, lambda p: p(FLAT)  # fmt: skip
    yield (
        "KernelDensity",
        scores.KernelDensity,
        {"points": FLAT, "bandwidth": 0.1},
        lambda p: p(FLAT),
    )
    yield (
        "DensityScore",
        scores.DensityScore,
        {"density": GAUSSIAN, "sigma": 0.1},
        lambda s: s(FLAT),
    )
    yield "DenoisingScore", scores.DenoisingScore, {
        "denoise": lambda x, _: x * 0.9, "sigma": 0.1, "precision": "float32"
    }, at_x  # fmt: skip
    yield "DenoisingScore()", FIELD, {"x": X}, ignored
    yield "Affine", scores.Affine, {"score": FIELD, "scale": 2.0, "shift": 0.5}, at_x
    yield "from_edm", scores.from_edm, {
        "network": lambda x, _: x, "sigma": 0.1, "coordinates": "[0,1]"
    }, at_x  # fmt: skip
    yield "pretrained", scores.pretrained, {"name": "digits"}, ignored
    yield "named", scores.named, {"spec": "digits"}, ignored
    yield "Denoiser", scores.Denoiser, {"event_shape": (1, 4, 4), "mean": 0.5, "std": 0.2}, ignored
    yield "sigma_of", scores.sigma_of, {"timestep": 50}, ignored
    yield "timestep_of", scores.timestep_of, {"sigma": 0.1}, ignored
    yield "FitConfig", scores.FitConfig, {
        "steps": 1, "minutes": 1.0, "batch": 2, "rate": 0.01, "ema": 0.9, "seed": 0
    }, ignored  # fmt: skip
    yield "Split", data.Split, {"stored": X, "y": Y}, ignored
    yield "Batches", data.Batches, {
        "examples": (X, Y), "batch_size": 2, "seed": 0,
        "augment": data.CropAndFlip(1), "shuffle": True, "smallest": 2,
    }, list  # fmt: skip
    yield "Batches of x", lambda x, y: data.Batches((x, y), 2), {"x": X, "y": Y}, list
    yield "CropAndFlip", data.CropAndFlip, {"padding": 1, "flip": True}, lambda move: move(X)
    yield "CropAndFlip()", data.CropAndFlip(1), {"x": X, "generator": None}, ignored
    yield "Standardisation", data.Standardisation, {"mean": (0.0,), "std": (1.0,)}, ignored
    yield "Standardisation.fit", data.Standardisation.fit, {"x": FLAT}, ignored
    yield "load", data.load, {
        "name_or_path": "digits", "validation": 0.1, "seed": 0, "size": None, "target": None,
        "ignore": (), "task": None, "standardise": None,
    }, ignored  # fmt: skip
    yield "fetch", data.fetch, {"name": "digits", "root": None, "source": None}, ignored
    yield "Dataset", data.Dataset, {
        "name": "own", "train": data.Split(X, Y), "validation": data.Split(X, Y),
        "test": data.Split(X, Y), "classes": ("a", "b", "c"),
    }, ignored  # fmt: skip
    yield "evaluate", partial(evaluation.evaluate, n=6), {
        "model": network(), "x": X, "y": Y, "threat": THREAT, "attacks": ["fgsm"], "n": 6,
        "seed": 0, "batch_size": 3, "out": None, "progress": None,
    }, ignored  # fmt: skip
    yield "audit", evaluation.audit, {
        "model": network(), "x": X, "y": Y, "threat": THREAT, "surrogate": None, "steps": 1,
        "restarts": 1, "queries": 2, "seed": 0, "batch_size": 3, "out": None,
    }, ignored  # fmt: skip
    yield "accuracy_curve", evaluation.accuracy_curve, {
        "model": network(), "x": X, "y": Y, "threat": THREAT, "factors": (1,),
        "attack": attacks.FGSM, "seed": 0, "batch_size": 3, "progress": None,
    }, ignored  # fmt: skip
    yield "shift", evaluation.shift, {
        "model": network(), "x": X, "y": Y, "seed": 0, "batch_size": 3, "progress": None,
    }, ignored  # fmt: skip
    yield "undefended", evaluation.undefended, {
        "x": X, "y": Y, "classes": 3, "epochs": 1, "width": 2, "seed": 0, "progress": None,
    }, ignored  # fmt: skip
    for name, count in (("accuracy_interval", 1), ("difference_interval", 2), ("mcnemar", 2)):
        given = {"first": Y > 0, "second": Y > 1} if count == 2 else {"correct": Y > 0}
        yield name, getattr(evaluation, name), given, ignored
    yield "subset", evaluation.subset, {"total": 10, "n": 5, "seed": 0}, ignored
    yield "directions", directions, {"x": X, "probes": 2, "distribution": "gaussian"}, ignored
    yield "ksd", identities.ksd, {
        "x": FLAT, "s": -FLAT, "kernel": "imq", "bandwidth": "median", "statistic": "u"
    }, ignored  # fmt: skip
    yield "stein_identity", identities.stein_identity, {
        "f": lambda x: x.square().sum(1), "x": FLAT, "s": -FLAT, "probes": 1, "batch": 3
    }, ignored  # fmt: skip
    for probe in (probes.Margin(), probes.Logit(), probes.Logit(1)):
        yield repr(probe), probe, {"z": torch.rand(6, 3), "y": Y}, ignored
    yield "Logit", probes.Logit, {"index": 1}, lambda probe: probe(torch.rand(6, 3), Y)
    yield "Probed", probes.Probed, {"model": network(), "probe": probes.Margin(), "y": Y}, at_x
    yield "Wrapped", models.Wrapped, {"function": network()}, at_x
    yield "models.build", models.build, {
        "name": "cnn", "classes": 3, "shape": (1, 8, 8), "activation": "relu", "width": 2
    }, ignored  # fmt: skip


def wrong(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = arguments[name]
    return tensors(given) if isinstance(given, Tensor) else VALUES


def problem(error: BaseException, argument: str) -> str | None:
    """What is wrong with an error; None if it is right."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {error}"[:160]
    if not isinstance(error, RIGHT):
        return where
    if not last.filename.startswith((SOURCE, str(Path(__file__)))):
        return f"raised outside of taser: {where}"
    named = argument in str(error) or WORDS.search(str(error))
    return None if named else f"says nothing of {argument}: {where}"


def attempt(call: F, then: F, arguments: dict[str, Any], name: str, value: Any) -> str | None:
    """What is wrong with how a call with one wrong argument fails; None if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            then(call(**{**arguments, name: value}))
    except Exception as error:
        return problem(error, name)
    return None


SUBJECTS = list(subjects())


@pytest.mark.parametrize(
    ("name", "call", "arguments", "then"), SUBJECTS, ids=[subject[0] for subject in SUBJECTS]
)
def test_one_wrong_argument(
    name: str, call: F, arguments: dict[str, Any], then: F, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    bad = {
        f"{argument} = {kind}": found
        for argument in arguments
        for kind, value in wrong(arguments, argument).items()
        if (found := attempt(call, then, arguments, argument, value)) is not None
    }
    assert not bad, "\n".join(f"{name}: {key}: {text}" for key, text in bad.items())


@pytest.mark.parametrize(("name", "call", "arguments", "then"), SUBJECTS)
def test_the_right_arguments_work(name: str, call: F, arguments: dict[str, Any], then: F) -> None:
    """So that a wrong one is what fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            then(call(**arguments))
        except evaluation.TooFewCorrect:  # the network is not trained
            assert name == "audit"


def test_an_error_of_the_users_own_code_is_left_alone() -> None:
    def model(_: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        attacks.FGSM(THREAT)(models.Wrapped(model), X, Y)


def test_a_failed_call_says_what_it_was_given() -> None:
    with pytest.raises(ValueError, match=r"x = float32 \(.*, 1, 5, 5\).* shapes cannot") as caught:
        taser.Taser(FIELD, threat=THREAT)(network(), torch.rand(6, 1, 5, 5), Y)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, RuntimeError)
