"""The networks of a comparison under a threat that training did not use, such as a larger ε.

    python experiments/unseen.py out/digits --norm linf --epsilon 0.225 --attack autoattack

Evaluates each finished run with its best weights and prints a table: accuracy in per cent, and the
difference to the method alone with its paired 95 % interval over the examples of all seeds.
"""

import argparse
from pathlib import Path

import torch

import taser
from output import markdown
from taser.compare import Results, RunResult, read_results
from taser.evaluation import Evaluation, difference_interval


def evaluate(results: Results, run: RunResult, threat: taser.Threat, attack: str) -> Evaluation:
    """One run's network on the examples of its comparison; the folder keeps what is done."""
    name = run.record["run"]
    home = results.folder / "runs" / name / "run"
    test = taser.data.load(run.record["config"]["data"]["name"]).test
    rows = run.evaluations[0].index
    return taser.evaluate(
        taser.training.load_trained(home), test.rows(rows), test.y[rows], threat=threat,
        attacks=[attack], n=len(rows),
        out=results.folder / "unseen" / f"{name}-{threat.norm}-{threat.epsilon:.4g}",
    )  # fmt: skip


def table(found: dict[tuple[str, str, int], Evaluation], threat: taser.Threat) -> str:
    """Rows of methods and variants. found: by method, variant and seed."""
    rows = []
    for method, variant in dict.fromkeys(key[:2] for key in found):
        seeds = [seed for name, kind, seed in found if (name, kind) == (method, variant)]
        ours = torch.stack([found[method, variant, seed].robust for seed in seeds])
        cells = [method, variant, f"{100 * ours.double().mean():.1f}", ""]
        if variant != "off" and all((method, "off", seed) in found for seed in seeds):
            off = torch.stack([found[method, "off", seed].robust for seed in seeds])
            gain = difference_interval(ours, off)
            cells[3] = f"{100 * gain.value:+.1f} [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"
        rows.append(cells)
    n = next(iter(found.values())).n
    return markdown(["method", "variant", "accuracy", "Δ"], rows, f"{threat}, n = {n}.")


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--norm", default="linf", choices=("linf", "l2"))
    parser.add_argument("--epsilon", required=True)
    parser.add_argument("--attack", default="autoattack")
    given = parser.parse_args()
    threat, results = taser.Threat(given.norm, given.epsilon), read_results(given.folder)
    runs = sorted(results.runs, key=lambda run: (run.method, run.variant != "off"))
    found = {(run.method, run.variant, run.seed): evaluate(results, run, threat, given.attack)
             for run in runs if not run.finetuned}  # fmt: skip
    print(table(found, threat))


if __name__ == "__main__":
    main()
