"""Our AutoAttack against a plain run of the package on the same examples: verdicts and time.

    python benchmarks/evaluation.py --out benchmarks/results

Models that others trained are attacked a batch at a time, by the package alone and by
`taser.evaluate`, one right after the other and each first in turn, so that both see the same load.
Plain follows the package's documentation: the model in evaluation mode and unchanged. Ours includes
preparing the model, checking the examples and verifying the attacked inputs.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pyautoattack import AutoAttack
from torch import Tensor, nn

from measure import markdown, write
from taser.attacks import Threat
from taser.data import load
from taser.evaluation import evaluate
from taser.models import load_model

KNOWN_MODELS = Path(__file__).parent.parent / "experiments" / "known_models.py"
EPSILONS = {"mnist": 0.3, "cifar10": 8 / 255}
Verdict = Callable[[nn.Module, Tensor, Tensor, float], Tensor]


def plain(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """(n,) bool: robust under the package's standard version."""
    attack = AutoAttack(model, norm="Linf", eps=epsilon, seed=0, version="standard")
    _, answers = attack.run_standard_evaluation(x, y)
    return answers == y


def ours(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """The same by `taser.evaluate`."""
    threat = Threat("linf", epsilon)
    return evaluate(model, x, y, threat=threat, attacks=("autoattack",), n=len(x)).robust


def timed(run: Verdict, *arguments: object) -> tuple[Tensor, float, float]:
    """Verdicts, and seconds by the processor's clock and by the wall's."""
    work, wall = time.process_time(), time.perf_counter()
    verdicts = run(*arguments)  # type: ignore[arg-type]
    return verdicts, time.process_time() - work, time.perf_counter() - wall


def measure(name: str, examples: int, batch: int) -> dict:
    """One model: accuracy by both, how many verdicts agree, seconds of both."""
    data = name.partition("_")[0]
    dataset, epsilon = load(data), EPSILONS[data]
    model = load_model(f"{KNOWN_MODELS}:{name}", classes=10, shape=dataset.input_shape)
    test = dataset.test
    verdicts: dict[str, list[Tensor]] = {"plain": [], "ours": []}
    seconds = {"plain": [0.0, 0.0], "ours": [0.0, 0.0]}
    for number, rows in enumerate(torch.arange(examples).split(batch)):
        order: list[tuple[str, Verdict]] = [("plain", plain), ("ours", ours)]
        for label, run in order if number % 2 == 0 else reversed(order):
            found, work, wall = timed(run, model, test.rows(rows), test.y[rows], epsilon)
            verdicts[label].append(found)
            seconds[label] = [seconds[label][0] + work, seconds[label][1] + wall]
        print(f"{name}: {rows[-1] + 1} of {examples}, {seconds}", flush=True)
    one, two = torch.cat(verdicts["plain"]), torch.cat(verdicts["ours"])
    return {
        "model": name,
        "epsilon": epsilon,
        "n": examples,
        "robust_plain": int(one.sum()) / examples,
        "robust_ours": int(two.sum()) / examples,
        "agreement": int((one == two).sum()) / examples,
        "cpu_seconds": {label: spent[0] for label, spent in seconds.items()},
        "wall_seconds": {label: spent[1] for label, spent in seconds.items()},
        "ratio": seconds["plain"][0] / seconds["ours"][0],
    }


def table(rows: list[dict]) -> str:
    """One row a model."""
    return markdown(
        ["model", "ε", "n", "robust, plain %", "robust, ours %", "verdicts that agree %",
         "plain, CPU s", "ours, CPU s", "times faster"],
        [
            [r["model"], f"{r['epsilon']:.3g}", str(r["n"]), f"{100 * r['robust_plain']:.1f}",
             f"{100 * r['robust_ours']:.1f}", f"{100 * r['agreement']:.1f}",
             f"{r['cpu_seconds']['plain']:.0f}", f"{r['cpu_seconds']['ours']:.0f}",
             f"{r['ratio']:.2f}"]
            for r in rows
        ],
        "Standard AutoAttack, ℓ∞, one thread; seconds by the processor's clock, since other work "
        "shared the machine.",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--models", nargs="+", default=["mnist_lenet5_robust", "cifar10_resnet18"],
        help="functions of experiments/known_models.py",
    )  # fmt: skip
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for evaluation.json and evaluation.md")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [measure(name, arguments.examples, arguments.batch) for name in arguments.models]
    print(table(rows))
    if arguments.out:
        write(arguments.out, "evaluation", "AutoAttack, plain and ours", rows, [table(rows)])


if __name__ == "__main__":
    main()
