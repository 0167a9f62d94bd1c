"""What TASER costs on top of each method: without it, the paper's way, and our default.

python benchmarks/overhead.py                                # half an hour on two cores
python benchmarks/overhead.py --methods standard pgd --widths 16 --out out/overhead
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from measure import circumstances, interleaved, markdown, parser, write
from training_steps import (
    METHODS,
    MODE_TITLES,
    MODES,
    PLAIN_LOOPS,
    WORKLOADS,
    Workload,
    plain_pgd_loop,
    stepper,
)

PAPER = {
    "standard": 2.45, "pgd": 1.25, "trades": 1.27, "mart": 1.19, "trades-awp": 1.21,
    "mart-awp": 1.17,
}  # fmt: skip
SELDOM = ("paper", *PLAIN_LOOPS)  # whose ratios are far from one


def measure(workload: Workload, method: str, repetitions: int) -> list[dict[str, Any]]:
    """One method in every mode; for PGD also the loops that everybody writes.

    The ratio of a timing is to the method's "off" in the same repetition.
    """
    steppers = {mode: stepper(workload, method, overrides) for mode, overrides in MODES.items()}
    if method == "pgd":
        for name, weight_gradients in PLAIN_LOOPS.items():
            steppers[name] = plain_pgd_loop(workload, weight_gradients), 1
    return [
        {
            "workload": workload.name, "method": method, "mode": mode, "timing": asdict(timing),
            "milliseconds_per_example": 1000 * timing.seconds / workload.batch,
        }
        for mode, timing in interleaved(steppers, repetitions, seldom=SELDOM).items()
    ]  # fmt: skip


def table(workload: str, result: dict[str, Any]) -> str:
    """A row for each method and mode."""
    rows = []
    for cost in result["costs"]:
        if cost["workload"] == workload:
            mode, timing = cost["mode"], cost["timing"]
            rows.append([
                METHODS[cost["method"]], MODE_TITLES.get(mode, mode),
                f"{cost['milliseconds_per_example']:.1f}", f"×{timing['ratio']:.2f}",
                f"{timing['ratio_low']:.2f}–{timing['ratio_high']:.2f}",
                f"×{PAPER[cost['method']]:.2f}" if mode == "paper" else "",
            ])  # fmt: skip
    return markdown(
        ["method", "", "ms/example", "overhead", "range", "in the paper"], rows,
        f"{workload}: steps of {result['threads']} thread(s), torch {result['torch']}; overhead is "
        f"the median of {result['repetitions']} ratios to a step of the method alone in the same "
        "repetition (the paper's way and the loops in each third), its range beside it.",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, repetitions=9)
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    widths = [workload.width for workload in WORKLOADS]
    options.add_argument("--widths", nargs="+", type=int, choices=widths, default=widths)
    given = options.parse_args(arguments)
    torch.set_num_threads(given.threads)
    result: dict[str, Any] = {**circumstances(), "repetitions": given.repetitions, "costs": []}
    tables: dict[str, str] = {}
    for workload in (w for w in WORKLOADS if w.width in given.widths):
        for method in given.methods:
            result["costs"] += measure(workload, method, given.repetitions)
            tables[workload.name] = table(workload.name, result)
            write(given.out, "overhead", "What TASER costs", result, list(tables.values()))
            print(f"{workload.name}, {METHODS[method]}: done", flush=True)
    print("\n".join(tables.values()))


if __name__ == "__main__":
    main()
