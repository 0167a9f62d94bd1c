"""Tables of what a closer look at the runs found: sensitivity, corruptions, audits."""

from collections.abc import Sequence
from statistics import mean

from taser.studies.results import RunResult
from taser.studies.table_rows import Row, in_order

from .method_table import emphasised, percent, title_of, variant_of
from .table import Table

GEOMETRY = (
    "Sensitivity of the margin m on {n} test examples: its size; the share in directions that the "
    "shipped denoiser takes for noise, as a mean over examples; how many would be right at ε = "
    "{epsilon:.3g} if every logit was linear around each example, and how many are under PGD. The "
    "difference of the last two is what the network bends inside the ball."
)

CORRUPTED = (
    "Per cent right under corruptions: the mean of all with its change against the method alone "
    "and a paired 95 % interval, and each kind over its five severities: noise "
    "(Gaussian, shot, impulse, speckle), blur (Gaussian, defocus, motion), light (fog, "
    "brightness, contrast, saturation where there is colour), digital (elastic, pixelate, JPEG). "
    "n = {n}; means over seeds."
)


def corrupted_table(runs: Sequence[RunResult], rows: Sequence[Row]) -> Table | None:
    """Accuracy under corruptions and by kind, as means over seeds; rows: with their gains."""
    known = [run for run in runs if "corrupted" in run.closer]
    if not known:
        return None
    kinds = list(known[0].closer["corrupted"]["kinds"])
    judged = {(row.method, row.variant, row.finetuned): row for row in rows
              if "corrupted" in row.accuracy}  # fmt: skip
    cells = []
    for name, same in by_name(known).items():
        row = judged.get((same[0].method, same[0].variant, same[0].finetuned))
        whole = (
            [percent(row.accuracy["corrupted"].value), emphasised(row, "corrupted")]
            if row
            else ["", ""]
        )
        shares = [mean(run.closer["corrupted"]["kinds"][kind] for run in same) for kind in kinds]
        cells.append([name, *whole, *map(percent, shares), str(len(same))])
    n = len(known[0].closer["corrupted"]["right"])
    return Table(["run", "mean", "Δ", *kinds, "seeds"], cells, CORRUPTED.format(n=n))


def by_name(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """The seeds of each method and variant together."""
    groups: dict[str, list[RunResult]] = {}
    for run in in_order(runs):
        groups.setdefault(_name(run), []).append(run)
    return groups


def geometry_table(runs: Sequence[RunResult]) -> Table | None:
    """Size and direction of the sensitivity, and what they promise, as means over seeds."""
    known = [run for run in runs if "sensitivity" in run.closer]
    cells = []
    for name, same in by_name(known).items():
        seen = [run.closer["sensitivity"] for run in same]
        shares = [each["off_data"] for each in seen if each["off_data"] is not None]
        cells.append([
            name, f"{mean(each['gradient'] for each in seen):.3g}",
            f"{100 * mean(shares):.0f} %" if shares else "–",
            f"{100 * mean(each['linear'] for each in seen):.1f} %",
            f"{100 * mean(_under_pgd(run) for run in same):.1f} %", str(len(seen)),
        ])  # fmt: skip
    if not cells:
        return None
    epsilon = known[0].evaluations[0].threat.epsilon
    return Table(
        ["run", "‖∇m‖", "off the data", "right if linear", "right under PGD", "seeds"], cells,
        GEOMETRY.format(n=known[0].closer["curve"]["n"], epsilon=epsilon),
    )  # fmt: skip


def _under_pgd(run: RunResult) -> float:
    """The curve's accuracy at the ε of the table."""
    curve, epsilon = run.closer["curve"], run.evaluations[0].threat.epsilon
    nearest = min(range(len(curve["epsilons"])), key=lambda i: abs(curve["epsilons"][i] - epsilon))
    return float(curve["accuracies"][nearest])


def audit_table(runs: Sequence[RunResult]) -> Table | None:
    """The verdict on every run that was audited."""
    cells = []
    for run in runs:
        audit = run.closer.get("audit")
        if audit:
            failed = [check["name"] for check in audit["checks"] if check["status"] == "failed"]
            cells.append([_name(run), str(run.seed), audit["verdict"], ", ".join(failed) or "none",
                          str(audit["n"])])  # fmt: skip
    if not cells:
        return None
    caption = (
        "Audits of the runs with TASER: of fourteen checks, those that speak against the figures."
    )
    return Table(["run", "seed", "verdict", "checks failed", "n"], cells, caption)


def _name(run: RunResult) -> str:
    return f"{title_of(run.method, run.finetuned)} {variant_of(run.variant)}"
