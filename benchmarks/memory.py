"""How much more memory a training step needs with TASER.

python benchmarks/memory.py                              # other work on the machine does no harm
python benchmarks/memory.py --methods pgd --out out/memory
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from measure import circumstances, in_fresh_process, markdown, parser, peak_growth, write
from training_steps import METHODS, MODE_TITLES, MODES, WORKLOADS, Workload, stepper

PROCESSES = 3  # whose peaks scatter by a tenth


def peak_memory(workload: Workload, method: str, mode: str, threads: int) -> int:
    """Bytes of one step's peak: its activations, gradients and the optimiser's state.

    A step on two examples before it loads and allocates what is loaded only once. Attack steps
    follow each other in the same memory, so that one is enough.
    """
    torch.set_num_threads(threads)
    overrides = [*MODES[mode], "objective.steps=1"]
    warm_up, _ = stepper(replace(workload, batch=2), method, overrides)
    warm_up()
    return peak_growth(stepper(workload, method, overrides)[0])


def measure(workload: Workload, method: str) -> list[dict[str, Any]]:
    """The median peak of a few processes in every mode; ratios are to the first, "off"."""
    threads = torch.get_num_threads()
    peaks = {
        mode: statistics.median(
            in_fresh_process(peak_memory, workload, method, mode, threads) for _ in range(PROCESSES)
        )
        for mode in MODES
    }
    return [
        {"workload": workload.name, "method": method, "mode": mode, "bytes": peak,
         "ratio": peak / peaks["off"]}
        for mode, peak in peaks.items()
    ]  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """A row for each method and mode."""
    rows = [
        [peak["workload"], METHODS[peak["method"]], MODE_TITLES[peak["mode"]],
         f"{peak['bytes'] / 1e6:.0f}", f"×{peak['ratio']:.2f}"]
        for peak in result["peaks"]
    ]  # fmt: skip
    return markdown(
        ["network", "method", "", "peak MB", "against the method alone"], rows,
        f"Resident memory that one step adds, the median of {result['processes']} processes, which "
        f"scatter by a tenth; {result['threads']} thread(s), torch {result['torch']}.",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    widths = [workload.width for workload in WORKLOADS]
    options.add_argument("--widths", nargs="+", type=int, choices=widths, default=widths)
    given = options.parse_args(arguments)
    torch.set_num_threads(given.threads)
    result: dict[str, Any] = {**circumstances(), "processes": PROCESSES, "peaks": []}
    for workload in (w for w in WORKLOADS if w.width in given.widths):
        for method in given.methods:
            result["peaks"] += measure(workload, method)
            write(given.out, "memory", "How much memory TASER needs", result, [table(result)])
            print(f"{workload.name}, {METHODS[method]}: done", flush=True)
    print(table(result))


if __name__ == "__main__":
    main()
