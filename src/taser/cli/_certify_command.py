"""`taser certify`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from . import _options as cli


@cli.with_json
def certify(
    model: cli.Model, data: cli.Data = None, weights: cli.Weights = None,
    option: cli.Options = None,
    sigma: Annotated[list[float], Option(help="Of the noise, in the units of x; repeatable.")]
    = [0.25],  # noqa: B006
    denoiser: Annotated[str | None, Option(help="In front: shipped, a file, diffusers:NAME, ….")]
    = None,
    radius: Annotated[list[float] | None, Option(help="ℓ2 radii that matter. [½, 1, 1½, 2 σ]")]
    = None,
    all_draws: Annotated[bool, Option("--all-draws", help="For each, for its largest radius.")]
    = False,
    examples: Annotated[int, Option("--examples", "-n", min=1, help="Of the test part.")] = 100,
    draws: Annotated[int, Option(min=1, help="Of noise for each example, at most.")] = 10_000,
    alpha: Annotated[float, Option(help="The chance that a certificate is wrong.")] = 0.001,
    attack: Annotated[bool, Option(help="Also attack, for a bound from above.")] = True,
    against: Annotated[Path | None, Option(help="The --out of another run, to compare with.")]
    = None,
    batch: Annotated[int, Option(min=1, help="Draws at once.")] = 1000,
    seed: cli.Seed = 0, threads: cli.Threads = None, out: cli.NamedOut = None,
    root: cli.Root = None, trust_code: cli.TrustCode = False,
) -> None:  # fmt: skip
    """Certified ℓ2 robustness by randomised smoothing; killed and started again, it resumes.

    Example: taser certify --model out/run --denoiser digits --sigma 0.25

    Several processes that are given the same --out share the work.
    """
    from taser._runtime import is_main_process
    from taser.evaluation import attack_smoothed, read_certificates
    from taser.evaluation import certify as run
    from taser.report import _certify_report as report
    from taser.scores import named

    dataset, network = cli.load_model_and_data(
        model, weights, data, option, root, threads, trust_code=trust_code
    )
    out = out or cli.model_folder("certify", model, weights, dataset)
    loaded: Any = None if denoiser is None else named(denoiser)
    radii = sorted(radius or [round(k * max(sigma), 6) for k in (0.5, 1.0, 1.5, 2.0)])
    others = [read_certificates(against / f"sigma-{s:g}") for s in sigma] if against else []
    found, attacked = [], []
    x, y, box = dataset.test.x, dataset.test.y, dataset.test.box
    with cli.progress_bar() as progress:
        for level in sigma:
            found.append(run(
                network, x, y, sigma=level, denoiser=loaded, radii=[] if all_draws else radii,
                n=examples, draws=draws, alpha=alpha, box=box, seed=seed, batch_size=batch,
                out=out / f"sigma-{level:g}", progress=progress,
            ))  # fmt: skip
            again: Any = {"denoiser": loaded, "box": box, "progress": progress}
            wanted = attack and is_main_process()
            attacked.append(
                attack_smoothed(network, x, found[-1], radii, **again) if wanted else {}
            )
    cli.end_unless_main()
    typer.echo(report.table(found, attacked, radii).markdown())
    front = f", with the denoiser {denoiser} in front" if denoiser else ""
    page = report.write(found, attacked, radii, f"{model} on {dataset.name}{front}", out, others)
    cli.show(page, report.summary(found, radii, others))
