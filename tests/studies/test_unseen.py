"""Networks of a study under threats that their training did not know."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_table import run

from taser.attacks import Threat
from taser.compare._comparison import do, keep
from taser.compare._comparison_config import TableConfig
from taser.compare._jobs import Queue
from taser.compare._run_results import RunResult, results, unseen
from taser.report import _comparison_report as method_study
from taser.report._method_tables import Finished, unseen_summary, unseen_tables

CONFIG = TableConfig(
    methods=("standard",), n=40, epsilon=0.05, attacks=("fgsm", "noise"), fewer={"noise": 20},
    variants={"off": []},
    overrides=["data.examples=200", "loop.epochs=1", "validation.steps=1", "model.width=4",
               "loop.threads=1"],
)  # fmt: skip
ASKED = [{"epsilon": 0.3}, {"norm": "l2", "epsilon": "8/255"}]
RUN = "0-2-train-0-standard-off"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, to which threats were added."""
    out = tmp_path_factory.mktemp("unseen")
    queue = Queue(out / "runs")
    queue.add(CONFIG.jobs())
    queue.work(do, queue.names())
    before = (queue.folder / RUN / "result.json").stat().st_mtime_ns
    queue.add(replace(CONFIG, unseen=ASKED).jobs())
    queue.work(do, queue.names())
    assert not queue.failures()
    assert (queue.folder / RUN / "result.json").stat().st_mtime_ns == before
    return out


def test_a_finished_run_is_judged_under_more_threats(judged: Path) -> None:
    queue = Queue(judged / "runs")
    assert queue.names() == [RUN, f"{RUN}-l2-8_255", f"{RUN}-linf-0.3"]
    (trained,) = results(queue)
    assert trained.evaluations[0].threat == Threat("linf", 0.05)
    found = unseen(queue)
    assert set(found) == {Threat("linf", 0.3), Threat("l2", 8 / 255)}
    for runs in found.values():
        assert [each.attacks for each in runs] == [["fgsm"]]  # noise is for fewer examples
        assert runs[0].correct("clean").equal(trained.correct("clean"))
    at = {str(threat): runs[0].correct("fgsm").sum() for threat, runs in found.items()}
    assert at["ℓ∞ ε=0.3"] < trained.correct("fgsm").sum() <= at["ℓ2 ε=8/255"]


def test_the_report_shows_them_and_records_keep_them(judged: Path, tmp_path: Path) -> None:
    keep(Queue(judged / "runs"), tmp_path / "runs")
    page, _ = method_study.write(Finished.of(Queue(tmp_path / "runs")), tmp_path, title="Kept")
    assert "Attacks that training did not know" in page.read_text()
    assert "under ℓ∞ ε=0.3, for which the methods alone were not trained" in page.read_text()
    assert "ℓ2 ε=8/255" in (tmp_path / "table.md").read_text()


def test_weights_that_are_gone_are_told(judged: Path, tmp_path: Path) -> None:
    keep(Queue(judged / "runs"), tmp_path)
    queue = Queue(tmp_path)
    queue.add(replace(CONFIG, unseen=[*ASKED, {"epsilon": 0.1}]).jobs())
    queue.work(do, queue.names())
    assert queue.failures() == {
        f"{RUN}-linf-0.1": f"the weights of {RUN} are gone: train it in another folder\n"
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([{"norm": "l2"}], "such as {norm: l2, epsilon: 0.6}"),
        ([{"epsilon": 0.1, "steps": 3}], "such as {norm: l2, epsilon: 0.6}"),
        ([0.1], "such as {norm: l2, epsilon: 0.6}"),
        ({"norm": "l2", "epsilon": 1}, "unseen should be a list"),
        ([{"norm": "l1", "epsilon": 1}], "norm should be one of"),
        ([{"epsilon": 8}], "did you mean 8/255"),
    ],
)
def test_wrong_threats_are_told_before_training(asked: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, unseen=asked)


def test_attacks_on_fewer_examples_are_not_enough() -> None:
    with pytest.raises(ValueError, match="tried on all n examples"):
        replace(CONFIG, fewer={"noise": 20, "fgsm": 20}, unseen=ASKED)


def test_gains_are_over_the_method_alone_and_over_the_other_penalty(tmp_path: Path) -> None:
    """Seven in ten of PGD + TASER stand, six of the isotropic penalty, four alone."""
    queue = Queue(tmp_path)
    for variant, right in (("off", 40), ("gradient", 60), ("taser", 70)):
        for seed in (0, 1):
            _put(queue, variant, seed, right, run(variant, 80, seed=seed))
    (table,) = unseen_tables(Finished.of(queue))
    assert table.headings[2:] == ["AA", "Δ", "with other seeds", "against ‖∇m‖²"]
    by_variant = {row[1]: row[2:] for row in table.rows}
    assert by_variant["—"] == ["40.0", "", "", ""]
    assert by_variant["+ ‖∇m‖²"][3] == ""
    assert by_variant["+ TASER"][0] == "70.0"
    assert by_variant["+ TASER"][1].startswith("**+30.0 [")
    assert by_variant["+ TASER"][3].startswith("**+10.0 [")
    (line,) = unseen_summary(Finished.of(queue))
    assert "supported for 1 of 1 comparisons: PGD +30.0 [" in line


def _put(queue: Queue, variant: str, seed: int, right: int, trained: RunResult) -> None:
    """A finished run, and its network under a threat of its own."""
    name = f"{seed}-2-train-1-pgd-{variant}"
    queue.add({name: {}, f"{name}-linf": {}})
    entry = {
        "method": "pgd", "variant": variant, "seed": seed, "finetuned": False,
        "seconds_per_example": 0.001, "chosen": [], "closer": {}, "clean": 1.0, "robust": 0.8,
        "records": [json.loads(e.to_json()) for e in trained.evaluations],
    }  # fmt: skip
    again = run(variant, right, seed=seed).evaluations[0]
    records = [json.loads(again.to_json())]
    (queue.folder / name / "result.json").write_text(json.dumps(entry))
    (queue.folder / f"{name}-linf" / "result.json").write_text(
        json.dumps({"judged": name, "records": records})
    )
