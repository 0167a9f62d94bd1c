"""Effect of each part of TASER: every variant of an ablation against TASER as it is.

    taser compare experiments/ablation.yaml --trust-code --jobs 2 --out out/ablation
    python experiments/ablation.py out/ablation

Run both in the repository's folder: the YAML names experiments/half_trained.py and
replaced_scores.py by their paths. The second command writes to out/ablation/changes; it may be run
before the first one has finished.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from output import markdown, write
from taser.compare import Results, Row, read_results

BASELINES = ("taser", "TASER as it is")  # its name in today's YAML, and in older records


def changes(results: Results) -> list[Row]:
    """The rows with one part changed; gains are over TASER as it is."""
    variants = {run.variant for run in results.runs}
    baseline = next((name for name in BASELINES if name in variants), None)
    if baseline is None:
        raise SystemExit("no run with TASER as it is has finished yet")
    return [row for row in results.rows(baseline=baseline) if row.variant != "off"]


def table(rows: Sequence[Row]) -> str:
    """Accuracies in per cent, and gains over TASER as it is in points."""
    measures = ["clean", rows[0].headline]
    cells = []
    for row in rows:
        line = [row.method.capitalize(), row.variant]
        for measure in measures:
            line.append(f"{100 * row.accuracy[measure].value:.1f}")
            gain = row.gain and row.gain[measure]
            bounds = f"[{100 * gain.low:.1f}, {100 * gain.high:.1f}]" if gain else ""
            text = f"{100 * gain.value:+.1f} {bounds}" if gain else ""
            line.append(f"**{text}**" if gain and gain.excludes_zero() else text)
        cells.append(line)
    headings = ["method", "variant", *(h for measure in measures for h in (measure, "Δ"))]
    return markdown(
        headings, cells,
        f"Accuracy in per cent, n = {rows[0].n['clean']}. Δ against TASER as it is, in points, "
        "with its paired 95 % interval over the examples, in bold where that excludes zero.",
    )  # fmt: skip


def draw(rows: Sequence[Row]) -> Figure:
    """Every change with its paired 95 % interval, the best on top; grey if it includes zero."""
    changed = [row for row in rows if row.gain is not None]
    methods = list(dict.fromkeys(row.method for row in changed))
    height = 1.2 + 0.26 * len(changed) / max(1, len(methods))
    figure = Figure(figsize=(6.5 * max(1, len(methods)), height), layout="constrained")
    for number, method in enumerate(methods, 1):
        axes = figure.add_subplot(1, len(methods), number)
        found = [
            (row.gain[row.headline], row) for row in changed if row.method == method and row.gain
        ]
        found.sort(key=lambda entry: entry[0].value)
        for place, (gain, _) in enumerate(found):
            colour = "0.5" if gain.low <= 0 <= gain.high else "#2563eb"
            axes.plot([100 * gain.low, 100 * gain.high], [place, place], color=colour)
            axes.plot(100 * gain.value, place, "o", color=colour, ms=5)
        axes.axvline(0, color="0.5", linestyle="--", linewidth=0.8)
        axes.set_yticks(range(len(found)), [row.variant for _, row in found])
        label = f"Δ accuracy, {changed[0].headline}, points"
        axes.set(title=method, xlabel=label)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of `taser compare`, or its records")
    parser.add_argument("--out", type=Path, help="by default FOLDER/changes")
    given = parser.parse_args(arguments)
    rows = changes(read_results(given.folder))
    figures = [asdict(row) for row in rows]
    write(given.out or given.folder / "changes", [table(rows)], figures, "changes.png", draw(rows))


if __name__ == "__main__":
    main()
