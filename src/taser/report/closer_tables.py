"""Tables of what a closer look at the runs found: where sensitivity points, and audits."""

from collections.abc import Sequence
from statistics import mean

from taser.studies.table import RunResult

from .method_table import title_of, variant_of
from .table import Table

GEOMETRY = (
    "Sensitivity of the margin on {n} test examples: its size, the share that lies in directions "
    "which the denoiser takes for noise, and the ε at which half of the examples would break if "
    "networks were linear. Where that radius grows and the accuracy at ε = {epsilon:.3g} does not, "
    "the network bends inside the ball, and a penalty at its centre cannot see it."
)


def geometry_table(runs: Sequence[RunResult]) -> Table | None:
    """Size and direction of the sensitivity, and what they promise, as means over seeds."""
    kinds = dict.fromkeys(
        (r.method, r.finetuned, r.variant) for r in runs if "geometry" in r.closer
    )
    cells = []
    for kind in kinds:
        same = [r for r in runs if (r.method, r.finetuned, r.variant) == kind]
        seen = [r.closer["geometry"] for r in same if "geometry" in r.closer]
        shares = [each["off_data"] for each in seen if each["off_data"] is not None]
        cells.append([
            _name(same[0]), f"{mean(each['gradient'] for each in seen):.3g}",
            f"{100 * mean(shares):.0f} %" if shares else "–",
            f"{mean(each['radius'] for each in seen):.3g}", str(len(seen)),
        ])  # fmt: skip
    if not cells:
        return None
    epsilon = runs[0].evaluations[0].threat.epsilon
    return Table(
        ["run", "‖∇m‖", "off the data", "first-order radius", "seeds"], cells,
        GEOMETRY.format(n=runs[0].closer["curve"]["n"], epsilon=epsilon),
    )  # fmt: skip


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
