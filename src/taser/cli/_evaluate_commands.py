"""`taser evaluate`, `taser audit` and `taser shift`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from . import _options as cli

if TYPE_CHECKING:
    from torch import Tensor, nn

    from taser.attacks import Threat
    from taser.data import Dataset

CURVE = 200  # examples for the curve against ε
SURROGATE = FITTED = 10_000  # training examples for the audit's surrogate, a shift's Gaussian
REFERENCE = 500  # training examples for a residual's mean


@cli.with_json
def evaluate(
    model: cli.Model, data: cli.Data = None, weights: cli.Weights = None,
    option: cli.Options = None, epsilon: cli.Epsilon = None, norm: cli.Norm = None,
    fixed: cli.Fixed = "", integer: cli.Integer = "", bounds: cli.Bounds = "",
    examples: Annotated[int, Option("--examples", "-n", "--n", min=1, help="How many.")] = 1000,
    first: Annotated[bool, Option("--first", help="The first ones, not a draw.")] = False,
    attacks: Annotated[
        str, Option(help="autoattack, spsa, spsa-strong, pgd, fgsm, noise, apgd-ce, …")
    ] = "autoattack,spsa",
    unbounded: Annotated[
        bool, Option("--unbounded", help="Inputs have no range, as in tables; images have.")
    ] = False,
    curve: Annotated[bool, Option(help="Also draw accuracy against ε.")] = True,
    at_least: Annotated[
        float | None, Option(min=0, max=100, help="Exit code 3 if fewer per cent are robust.")
    ] = None,
    eot: Annotated[
        int | None, Option(min=1, help="Draws of a random model that attacks average; else 20.")
    ] = None,
    batch: Annotated[int, Option("--batch", "--batch-size", min=1, help="Attacked at once.")] = 100,
    seed: cli.Seed = 0, threads: cli.Threads = None,
    out: cli.NamedOut = None,
    root: cli.Root = None, target: cli.Target = None,
    track: cli.Track = None, trust_code: cli.TrustCode = False,
) -> None:  # fmt: skip
    """Accuracy under attack, example by example; killed and started again, it goes on.

    Example: taser evaluate --model out/run --epsilon 0.1

    Exit code 0: evaluated; 1: it could not be; 3: less than --at-least. Several processes, such as
    those of torchrun --nproc-per-node 4 -m taser evaluate …, share the examples.
    """
    from taser.data._dataset import subset
    from taser.evaluation import evaluate as run
    from taser.evaluation._evaluate import accuracy_curve
    from taser.evaluation._record import predictions
    from taser.report import _evaluation_report as report

    dataset, network = cli.load_model_and_data(
        model, weights, data, option, root, threads, target, trust_code=trust_code, regression=True
    )
    threat = cli.read_threat(
        dataset, norm, epsilon, fixed=fixed, integer=integer, bounds=bounds, unbounded=unbounded,
        model=model,
    )  # fmt: skip
    x, y = dataset.test.x, dataset.test.y
    out = out or cli.model_folder("evaluate", model, weights, dataset, threat)
    if first:
        x, y = x[:examples], y[:examples]
    if dataset.classes is None:
        if at_least is not None:
            raise ValueError("--at-least is a share of right answers; a regression has errors")
        tried = "pgd,spsa" if attacks == "autoattack,spsa" else attacks
        options = {"n": examples, "seed": seed, "batch_size": batch}
        _evaluate_regression(
            dataset, network, x, y, threat, tried, curve, options, out,
            f"{model} on {dataset.name}, {threat}",
        )  # fmt: skip
        return
    with cli.progress_bar() as progress:
        result = run(
            network, x, y, threat=threat, attacks=attacks.replace(" ", "").split(","),
            n=examples, seed=seed, batch_size=batch, eot=eot, out=out, progress=progress,
        )  # fmt: skip
        cli.end_unless_main()
        x, y, drawn = x[result.index], y[result.index], None
        if curve:
            rows = subset(len(x), CURVE)  # the first might be all of one class
            drawn = accuracy_curve(
                network, x[rows], y[rows],
                threat=threat, seed=seed, batch_size=batch, progress=progress,
            )  # fmt: skip
    typer.echo(report.table(result).markdown())
    title = f"{model} on {dataset.name}, {threat}"
    assert result.x_adv is not None
    wrong = predictions(network, result.x_adv, batch)
    page = report.write(result, title, out, x=x, predictions=wrong, curve=drawn)
    shares = {name: verdicts.accuracy for name, verdicts in result.attacks.items()}
    shares |= {"clean": result.clean_accuracy, "worst case": result.robust_accuracy}
    cli.track_numbers(track, out, {f"evaluate/{name}": share for name, share in shares.items()})
    cli.show(page, report.summary(result), "evaluation.json")
    if at_least is not None and 100 * result.robust_accuracy < at_least:
        typer.echo(f"less than --at-least {at_least:g} %", err=True)
        raise typer.Exit(cli.VERDICT)


def _evaluate_regression(
    dataset: "Dataset", network: "nn.Module", x: "Tensor", y: "Tensor", threat: "Threat",
    attacks: str, curve: bool, options: dict[str, Any], out: Path, title: str,
) -> None:  # fmt: skip
    from taser.evaluation import error_curve, evaluate_regression
    from taser.report import _regression_report as report

    options["targets"] = dataset.target_standardisation
    names = attacks.replace(" ", "").split(",")
    with cli.progress_bar() as progress:
        options["progress"] = progress
        result = evaluate_regression(
            network, x, y, threat=threat, attacks=names, out=out, **options
        )
        drawn = error_curve(network, x, y, threat=threat, **options) if curve else None
    typer.echo(report.table(result).markdown())
    cli.show(report.write(result, title, out, drawn), report.summary(result), "evaluation.json")


@cli.with_json
def audit(
    model: cli.Model, data: cli.Data = None, weights: cli.Weights = None,
    option: cli.Options = None, epsilon: cli.Epsilon = None, norm: cli.Norm = None,
    fixed: cli.Fixed = "", integer: cli.Integer = "", bounds: cli.Bounds = "",
    examples: Annotated[int, Option("--examples", "-n", min=1, help="Of the test part.")] = 200,
    steps: Annotated[int, Option(min=1, help="Of PGD.")] = 50,
    restarts: Annotated[int, Option(min=1, help="Random starts of PGD.")] = 3,
    queries: Annotated[int, Option(min=1, help="Of attacks without gradients.")] = 1000,
    surrogate: Annotated[
        bool, Option(help="Train a quick undefended model on the training part, to transfer.")
    ] = True,
    format: Annotated[
        Literal["text", "json", "sarif"], Option(help="Printed; the folder holds all three.")
    ] = "text",
    seed: cli.Seed = 0, threads: cli.Threads = None, out: cli.NamedOut = None,
    root: cli.Root = None, target: cli.Target = None, trust_code: cli.TrustCode = False,
) -> None:  # fmt: skip
    """Robust accuracy, and whether to believe it: checks for gradient masking.

    Example: taser audit --model out/run --epsilon 0.1

    Exit code 0: trust, no check failed; 3: do not trust; 1: the audit could not be made. Killed
    and started again, it goes on.
    """
    from taser._runtime import default_device
    from taser.data._dataset import subset
    from taser.evaluation import TooFewCorrect, undefended
    from taser.evaluation import audit as run
    from taser.evaluation._audit import MIN_CORRECT
    from taser.report import _evaluation_report as report

    if examples < MIN_CORRECT:
        raise TooFewCorrect(f"at most {examples}", examples)
    dataset, network = cli.load_model_and_data(
        model, weights, data, option, root, threads, target, trust_code=trust_code
    )
    threat = cli.read_threat(
        dataset, norm, epsilon, fixed=fixed, integer=integer, bounds=bounds, model=model
    )  # fmt: skip
    out = out or cli.model_folder("audit", model, weights, dataset, threat)
    x, y = cli.draw_examples(dataset, examples)
    with cli.progress_bar() as progress:

        def train_surrogate() -> "nn.Module":
            train, rows = dataset.train, subset(len(dataset.train), SURROGATE)
            classes = len(dataset.classes or ())
            other = undefended(train.rows(rows), train.y[rows], classes, progress=progress)
            return other.to(default_device())

        result = run(
            network, x, y, threat=threat, surrogate=train_surrogate if surrogate else None,
            steps=steps, restarts=restarts, queries=queries, seed=seed, out=out / "batches",
            progress=progress,
        )  # fmt: skip
    cli.end_unless_main()
    accuracy, verdict, *rest = report.audit_summary(result)
    typer.echo(f"{accuracy}\n{verdict}\n\n{report.audit_table(result).markdown()}")
    page = report.write_audit(result, f"{model} on {dataset.name}, {threat}", out)
    cli.show(page, rest, "results.sarif" if format == "sarif" else "results.json")
    if result.verdict != "trust":
        raise typer.Exit(cli.VERDICT)


@cli.with_json
def shift(
    model: cli.Model, data: cli.Data = None, weights: cli.Weights = None,
    option: cli.Options = None,
    other: Annotated[list[str] | None, Option(help="Other data to detect; repeatable.")] = None,
    score: Annotated[
        str | None, Option(help="As for `taser score check`; else the shipped one or a Gaussian.")
    ] = None,
    epsilon: cli.Epsilon = None, norm: cli.Norm = None,
    examples: Annotated[int, Option("--examples", "-n", min=2, help="Of the test part.")] = 1000,
    severity: Annotated[int, Option(min=1, max=5, help="Of the corruptions to detect.")] = 3,
    seed: cli.Seed = 0, threads: cli.Threads = None, out: cli.NamedOut = None,
    root: cli.Root = None, trust_code: cli.TrustCode = False,
) -> None:  # fmt: skip
    """Accuracy under corruptions, and detection of out-of-distribution inputs.

    Example: taser shift --model out/run --other mnist

    The Stein residual and the usual statistics are to detect corrupted inputs, inputs attacked by
    PGD, and those of other data sets. One half of the test examples is compared with inputs made
    of the other half.
    """
    from taser._runtime import default_device
    from taser.data import load
    from taser.data._dataset import subset
    from taser.evaluation import out_of_distribution
    from taser.evaluation import shift as run
    from taser.evaluation._out_of_distribution import perturbed, resized
    from taser.report import _shift_report as report
    from taser.scores import Gaussian, named, pretrained
    from taser.scores._adapters import SHIPPED

    dataset, network = cli.load_model_and_data(
        model, weights, data, option, root, threads, trust_code=trust_code
    )
    x, y = (part.to(default_device()) for part in cli.draw_examples(dataset, examples))
    threat = cli.read_threat(dataset, norm, epsilon, model=model)
    out = out or cli.model_folder("shift", model, weights, dataset)
    if score is not None or dataset.name in SHIPPED:
        scored: Any = (pretrained(dataset.name) if score is None else named(score)).at()
    else:
        scored = Gaussian.fit(dataset.train.rows(subset(len(dataset.train), FITTED)))
    with cli.progress_bar() as progress:
        result = run(network, x, y, seed=seed, progress=progress)
        # Every other row, because files and folders may come class by class.
        inside, rest, labels = x[::2], x[1::2], y[1::2]
        outside = perturbed(network, rest, labels, threat, severity=severity, seed=seed)
        for name in other or []:
            images = cli.draw_examples(load(name, root=root), len(rest))[0]
            outside[name] = resized(images, dataset.input_shape)
        detection = out_of_distribution(
            network, scored.to(x.device), inside, outside, seed=seed, progress=progress,
            reference=dataset.train.rows(subset(len(dataset.train), REFERENCE)),
        )  # fmt: skip
    typer.echo(report.table(result).markdown())
    typer.echo(report.detection_table(detection).markdown())
    page = report.write(result, detection, f"{model} on {dataset.name}", out, example=x[0].cpu())
    cli.show(page, report.summary(result, detection))
