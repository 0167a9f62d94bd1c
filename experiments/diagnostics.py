"""Beyond a comparison's report: sensitivity, residuals, corruptions, training gap.

    taser compare digits --jobs 2 --out out/digits
    python experiments/diagnostics.py out/digits

Measures every finished network whose weights are there, and takes what older records hold of the
others. Writes table.md, figures.json and residuals.png to out/digits/diagnostics.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from output import markdown, write
from taser.attacks import Threat, input_gradient
from taser.compare import Results, RunResult, read_results
from taser.data import Split, load
from taser.evaluation import difference_interval, shift, subset
from taser.probes import Logit, Margin, Probed
from taser.scores import DenoisingScore, pretrained
from taser.stein import stein_residual
from taser.training import load_trained

DRAWS = 16  # of the noise for each example
EXAMPLES = 200  # of the test part, for the sensitivity and the residuals
LAST = 0.1  # of training: the part whose batches are counted
KINDS = {
    "noise": ("gaussian noise", "shot noise", "impulse noise", "speckle noise"),
    "blur": ("gaussian blur", "defocus blur", "motion blur"),
    "light": ("fog", "brightness", "contrast", "saturate"),
    "digital": ("elastic", "pixelate", "jpeg"),
}


@dataclass(frozen=True)
class Sensitivity:
    """Of n test examples, with m the smooth margin and ε̂ = −σ(s(x + σε) − s(x − σε))/2.

    gradient
        The root mean square of ‖∇m‖.
    off_data
        The mean of E_ε(ε̂·∇m)²/‖∇m‖²: the share of the sensitivity in directions that the
        denoiser takes for noise. It is one where the denoiser recognises all noise, and near zero
        along the data. Rescaling the network does not change it. None without a score. The scores
        are paired, because a denoiser's answer to x itself gives no share: with it a network had
        197 %.
    linear
        The accuracy under the worst allowed change, if every logit was linear around each example.
    """

    gradient: float
    off_data: float | None
    linear: float


def sensitivity(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, score: DenoisingScore | None
) -> Sensitivity:
    """x: (n, *); y: (n,)."""
    g = input_gradient(model, x, y, Margin()).flatten(1)
    squared = g.square().sum(1)
    off_data = None
    if score is not None:
        generator = torch.Generator(x.device).manual_seed(0)
        along = [(score.sigma * score.paired(x, generator).flatten(1) * g).sum(1).square()
                 for _ in range(DRAWS)]  # fmt: skip
        shares = torch.stack(along).mean(0) / squared
        off_data = float(torch.where(squared > 0, shares, torch.zeros_like(squared)).mean())
    correct = linearised_correct(model, x, y, threat)
    return Sensitivity(float(squared.mean().sqrt()), off_data, float(correct.float().mean()))


def linearised_correct(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Whether z_y − z_k stays above zero for all k ≠ y, by its first-order change alone: (n,).

    Under ℓ∞ the worst change inside the box is exact, pixel by pixel; under ℓ2 the box is ignored,
    which makes the change a little larger than allowed.
    """
    with torch.no_grad():
        logits = model(x)
    own = input_gradient(model, x, y, Logit())
    correct = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for k in range(logits.shape[1]):
        rise = (input_gradient(model, x, y, Logit(k)) - own).flatten(1)  # of z_k − z_y
        gap = logits.gather(1, y[:, None])[:, 0] - logits[:, k]
        correct &= (gap > _largest_rise(rise, x.flatten(1), threat)) | (y == k)
    return correct


def _largest_rise(g: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """max g·δ over the allowed δ: (n, d), (n, d) → (n,)."""
    if threat.norm == "l2":
        return threat.epsilon * g.norm(dim=1)
    if threat.low is None or threat.high is None:
        return threat.epsilon * g.abs().sum(1)
    room = torch.where(g > 0, threat.high - x, x - threat.low).clamp(0, threat.epsilon)
    return (g.abs() * room).sum(1)


@torch.no_grad()
def residuals(model: nn.Module, x: Tensor, y: Tensor, score: DenoisingScore) -> Tensor:
    """σ s·∇m(x) with paired scores s: TASER's first-order residual in units of noise, (n,)."""
    s = score.paired(x, torch.Generator(x.device).manual_seed(0))
    probe = Probed(model, Margin(), y)
    return score.sigma * stein_residual(probe, x, s, operator="first_order", backend="reverse")


def corruption_accuracy(model: nn.Module, test: Split, n: int) -> dict[str, Any] | None:
    """Correct answers to n test images under every corruption and severity; None for tables.

    of: the number of corruptions times severities; right: how many of these are correct, for each
    example, (n,); kinds: the accuracy under each kind of corruption.
    """
    if not test.is_images:
        return None
    rows = subset(len(test), n)
    found = shift(model, test.rows(rows), test.y[rows]).correct
    kinds = {
        kind: torch.cat([found[name] for name in names if name in found]).float().mean()
        for kind, names in KINDS.items()
    }
    every = torch.cat(list(found.values()))  # (corruptions · severities, n)
    return {
        "of": len(every), "right": every.sum(0).tolist(),
        "kinds": {kind: float(share) for kind, share in kinds.items()},
    }  # fmt: skip


def diagnostics(results: Results, run: RunResult) -> dict[str, Any]:
    """The diagnostics in a run's record, else those of its network; empty without weights."""
    if "sensitivity" in run.diagnostics:
        return run.diagnostics
    home = results.folder / "runs" / run.record["run"] / "run"
    if not (home / "best.safetensors").exists():
        return {}
    given = run.record["config"]["data"]
    keys = ("validation", "seed", "size", "target", "ignore", "task")
    test = load(given["name"], **{key: given[key] for key in keys if key in given}).test
    try:
        score = pretrained(given["name"]).at(timestep=50)
    except ValueError:  # none ships
        score = None
    model, rows = load_trained(home), subset(len(test), EXAMPLES)
    x, y = test.rows(rows), test.y[rows]
    found: dict[str, Any] = {"sensitivity": asdict(sensitivity(model, x, y, run.threat, score))}
    if score is not None:
        found["residuals"] = residuals(model, x, y, score).tolist()
    if corrupted := corruption_accuracy(model, test, run.evaluations[0].n):
        found["corrupted"] = corrupted
    return found


Rows = dict[str, list[tuple[RunResult, dict[str, Any]]]]
"""By method and variant the seeds, each with its diagnostics."""


def by_row(results: Results) -> Rows:
    """The seeds of each method and variant together."""
    groups: Rows = {}
    for run in results.runs:
        name = f"{run.method} {'(fine-tuned) ' * run.finetuned}{run.variant}"
        groups.setdefault(name, []).append((run, diagnostics(results, run)))
    return groups


def sensitivity_table(groups: Rows) -> str | None:
    """Size and direction of the margin's gradient, and a linear network's accuracy."""
    cells = []
    for name, group in groups.items():
        if seen := [found["sensitivity"] for _, found in group if "sensitivity" in found]:
            shares = [each["off_data"] for each in seen if each["off_data"] is not None]
            cells.append([
                name, f"{fmean(each['gradient'] for each in seen):.3g}",
                f"{100 * fmean(shares):.0f} %" if shares else "–",
                f"{100 * fmean(each['linear'] for each in seen):.1f} %",
                f"{100 * fmean(_under_pgd(run) for run, _ in group):.1f} %", str(len(seen)),
            ])  # fmt: skip
    headings = ["run", "‖∇m‖", "off the data", "correct if linear", "correct under PGD", "seeds"]
    if not cells:
        return None
    return markdown(
        headings, cells,
        f"Sensitivity of the margin m on {EXAMPLES} test examples: its size; the share in "
        "directions that the shipped denoiser takes for noise, as a mean over examples; accuracy "
        "at the ε of the comparison if every logit was linear around each example, and under PGD. "
        "The difference of the last two is due to curvature inside the ball.",
    )  # fmt: skip


def _under_pgd(run: RunResult) -> float:
    """The curve's accuracy at the ε of the table."""
    curve = run.diagnostics["curve"]
    points = zip(curve["epsilons"], curve["accuracies"], strict=True)
    return float(min(points, key=lambda point: abs(point[0] - run.threat.epsilon))[1])


def corrupted_table(groups: Rows) -> str | None:
    """Accuracy under corruptions and by kind, as means over seeds."""
    alone = {
        (run.method, run.finetuned, run.seed): found["corrupted"]
        for group in groups.values() for run, found in group
        if run.variant == "off" and "corrupted" in found
    }  # fmt: skip
    cells = []
    for name, group in groups.items():
        own = [(run, found["corrupted"]) for run, found in group if "corrupted" in found]
        if not own:
            continue
        others = [(found, alone.get((run.method, run.finetuned, run.seed))) for run, found in own
                  if run.variant != "off"]  # fmt: skip
        pairs = [(found, other) for found, other in others if other is not None]
        gain = ""
        if pairs:
            ours, theirs = (torch.cat([_answers(pair[i]) for pair in pairs]) for i in (0, 1))
            d = difference_interval(ours, theirs)
            gain = f"{100 * d.value:+.1f} [{100 * d.low:.1f}, {100 * d.high:.1f}]"
            gain = f"**{gain}**" if d.excludes_zero() else gain
        kinds = [fmean(found["kinds"][kind] for _, found in own) for kind in KINDS]
        mean = fmean(float(_answers(found).double().mean()) for _, found in own)
        shares = [f"{100 * share:.1f}" for share in (mean, *kinds)]
        cells.append([name, shares[0], gain, *shares[1:], str(len(own))])
    if not cells:
        return None
    return markdown(
        ["run", "mean", "Δ", *KINDS, "seeds"], cells,
        "Accuracy under corruptions in per cent: the mean of all with its change against the "
        "method alone and a paired 95 % interval, and each kind over its five severities: "
        + ", ".join(f"{kind} ({', '.join(names)})" for kind, names in KINDS.items())
        + ". Means over seeds.",
    )  # fmt: skip


def _answers(found: dict[str, Any]) -> Tensor:
    """(k, n): as many answers to each example as were correct, of k."""
    return torch.arange(found["of"])[:, None] < torch.tensor(found["right"])


def generalisation_table(groups: Rows) -> str | None:
    """Attacked training examples against validation examples, where training attacks."""
    cells = []
    for name, group in groups.items():
        found = [each for each in (_at_the_end(run) for run, _ in group) if each]
        if found:
            train, held_out = (100 * fmean(side) for side in zip(*found, strict=True))
            gap = f"{train - held_out:+.1f}"
            cells.append([name, f"{train:.1f}", f"{held_out:.1f}", gap, str(len(found))])
    if not cells:
        return None
    return markdown(
        ["run", "attacked training examples", "validation examples", "gap", "seeds"], cells,
        "Accuracy at the end of training in per cent: training examples under the method's own "
        "attack in the last tenth of the steps (TRADES's is weaker than PGD, so that its gap looks "
        "larger), and validation examples under a short PGD. Means over seeds.",
    )  # fmt: skip


def _at_the_end(run: RunResult) -> tuple[float, float] | None:
    """The accuracies on attacked training examples and on validation examples."""
    training, validation = run.record.get("training", {}), run.record.get("validation", [])
    steps, shares = training.get("step", []), training.get("attacked", [])
    start = (1 - LAST) * max([*steps, *(line["step"] for line in validation)], default=0)
    late = [share for step, share in zip(steps, shares, strict=False)
            if step > start and share is not None]  # fmt: skip
    return (fmean(late), validation[-1]["robust"]) if late and validation else None


def draw_residuals(groups: Rows) -> Figure:
    """The residuals of the first seed, a panel for each method, in the same bins."""
    methods: dict[str, dict[str, Tensor]] = {}
    for group in groups.values():
        run, found = group[0]
        if "residuals" in found:
            own = methods.setdefault(run.method + " (fine-tuned)" * run.finetuned, {})
            own[run.variant] = torch.tensor(found["residuals"])
    columns = max(1, len(methods))
    figure = Figure(figsize=(4.2 * columns, 3.0), layout="constrained")
    for place, (method, drawn) in enumerate(methods.items(), 1):
        axes = figure.add_subplot(1, columns, place)
        widest = max(float(r.abs().quantile(0.99)) for r in drawn.values())
        for variant, r in drawn.items():
            axes.hist(r.numpy(), bins=50, range=(-widest, widest), alpha=0.6,
                      label=f"{variant}: std {float(r.std()):.2g}")  # fmt: skip
        axes.set(title=method, xlabel="residual σ s·∇m", ylabel="test examples")
        axes.legend(frameon=False, fontsize=8)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of `taser compare`, or its records")
    parser.add_argument("--out", type=Path, help="by default FOLDER/diagnostics")
    given = parser.parse_args(arguments)
    groups = by_row(read_results(given.folder))
    tables = [table(groups) for table in (sensitivity_table, corrupted_table, generalisation_table)]
    figures = {
        run.record["run"]: {k: v for k, v in found.items() if k in ("sensitivity", "corrupted")}
        for group in groups.values() for run, found in group
    }  # fmt: skip
    write(given.out or given.folder / "diagnostics", [table for table in tables if table], figures,
          "residuals.png", draw_residuals(groups))  # fmt: skip


if __name__ == "__main__":
    main()
