"""The demonstration's conclusion in plain words."""

from collections.abc import Sequence

from taser.studies.results import RunResult
from taser.studies.table_rows import Row

from .method_table import percent

NEXT = (  # the last line of all
    "Where to look next: README.md for two lines in your own loop, docs/training.md to train and "
    "fine-tune, docs/audit.md to judge a model that you were handed."
)


def conclusion(rows: Sequence[Row], runs: Sequence[RunResult]) -> list[str]:
    """What happened, for someone who has read nothing yet."""
    found = {(row.method, row.variant): row for row in rows}
    plain, ours = found["standard", "off"], found["standard", "taser"]
    epsilon = runs[0].evaluations[0].threat.epsilon
    clean, broken = (percent(plain.accuracy[m].value) for m in ("clean", "worst"))
    kept, standing = (percent(ours.accuracy[m].value) for m in ("clean", "worst"))
    return [
        f"A network trained in the ordinary way reads {clean} % of the test digits, and {broken} % "
        f"once an attacker may move every pixel by {epsilon:g} of its range; trained with TASER it "
        f"reads {kept} % and {standing} % (n = {ours.n['worst']}).",
        _audited([run.closer["audit"]["verdict"] for run in runs if "audit" in run.closer]),
    ]


def _audited(verdicts: Sequence[str]) -> str:
    if "do not trust" in verdicts:
        return "The audit found checks that fail: do not believe these figures before reading it."
    if verdicts and all(verdict == "trust" for verdict in verdicts):
        return "The audit found nothing that says these figures come from hidden gradients."
    return "The audit could not be made for every run, so nothing says yet whether to believe them."
