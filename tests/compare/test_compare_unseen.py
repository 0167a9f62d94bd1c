"""Networks of a comparison under threats that were not used in training."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from test_comparison import finished, run

from taser._settings import from_mapping
from taser.attacks import Threat
from taser.compare import ComparisonConfig, Results, read_results, write_records
from taser.compare._comparison import run_job
from taser.compare._runs import Call, Runs
from taser.report import write_comparison
from taser.report._comparison_tables import unseen_table

CONFIG = ComparisonConfig(
    methods=("standard",), n=40, epsilon=0.05, attacks=("fgsm", "noise"), fewer={"noise": 20},
    variants={"off": []},
    overrides=["data.examples=200", "loop.epochs=1", "validation.steps=1", "model.width=4",
               "loop.threads=1"],
)  # fmt: skip
UNSEEN = [{"epsilon": 0.3}, {"norm": "l2", "epsilon": "8/255"}]
RUN = "0-2-train-0-standard-off"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, to which threats were added."""
    out = tmp_path_factory.mktemp("unseen")
    finished(CONFIG, out)
    before = (out / "runs" / RUN / "result.json").stat().st_mtime_ns
    finished(replace(CONFIG, unseen=UNSEEN), out)
    assert (out / "runs" / RUN / "result.json").stat().st_mtime_ns == before
    return out


def test_a_finished_run_is_evaluated_under_more_threats(evaluated: Path) -> None:
    assert Runs(evaluated / "runs").names() == [RUN, f"{RUN}-l2-8_255", f"{RUN}-linf-0.3"]
    results = read_results(evaluated)
    (trained,) = results.runs
    assert trained.evaluations[0].threat == Threat("linf", 0.05)
    found = results.unseen
    assert set(found) == {Threat("linf", 0.3), Threat("l2", 8 / 255)}
    for runs in found.values():
        assert [each.attacks for each in runs] == [["fgsm"]]  # noise is for fewer examples
        assert runs[0].correct("clean").equal(trained.correct("clean"))
    at = {str(threat): runs[0].correct("fgsm").sum() for threat, runs in found.items()}
    assert at["ℓ∞ ε=0.3"] < trained.correct("fgsm").sum() <= at["ℓ2 ε=8/255"]


def test_the_report_shows_them_and_records_keep_them(evaluated: Path, tmp_path: Path) -> None:
    write_comparison(read_results(evaluated), evaluated)
    write_records(evaluated, tmp_path)
    page = write_comparison(read_results(tmp_path), tmp_path / "again").read_text()
    assert "Attacks that training did not use" in page
    assert "under ℓ∞ ε=0.3, which training did not use" in page
    assert "ℓ2 ε=8/255" in (tmp_path / "table.md").read_text()


def test_missing_weights_are_an_error(evaluated: Path, tmp_path: Path) -> None:
    shutil.copytree(evaluated / "runs", tmp_path, dirs_exist_ok=True)
    (tmp_path / RUN / "run" / "best.safetensors").unlink()
    runs = Runs(tmp_path)
    runs.add(replace(CONFIG, unseen=[*UNSEEN, {"epsilon": 0.1}]).jobs())
    Call(tmp_path / f"{RUN}-linf-0.1", run_job)()
    assert runs.failures() == {
        f"{RUN}-linf-0.1": f"the weights of {RUN} are gone: train it in another folder"
    }


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        ([{"norm": "l2"}], "such as {norm: l2, epsilon: 0.6}"),
        ([{"epsilon": 0.1, "steps": 3}], "such as {norm: l2, epsilon: 0.6}"),
        ([0.1], "such as {norm: l2, epsilon: 0.6}"),
        ({"norm": "l2", "epsilon": 1}, "unseen should be a list"),
        ([{"norm": "l1", "epsilon": 1}], "norm should be one of"),
        ([{"epsilon": 8}], "did you mean 8/255"),
    ],
)
def test_wrong_threats_are_refused_before_training(unseen: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mapping(ComparisonConfig, {**asdict(CONFIG), "unseen": unseen}, "study.yaml")


def test_attacks_on_fewer_examples_are_not_enough() -> None:
    with pytest.raises(ValueError, match="tried on all n examples"):
        replace(CONFIG, fewer={"noise": 20, "fgsm": 20}, unseen=UNSEEN)


def test_gains_are_over_the_method_alone_and_over_the_other_penalty() -> None:
    """Seven in ten of PGD + TASER are correct, six of the isotropic penalty, four alone."""
    runs, records = [], []
    for variant, right in (("off", 40), ("gradient", 60), ("taser", 70)):
        for seed in (0, 1):
            trained, again = run(variant, 80, seed=seed), run(variant, right, seed=seed)
            job = {"judged": trained.record["run"]}
            other = {"run": "again", "job": job, "evaluations": again.record["evaluations"]}
            runs.append(trained)
            records += [trained.record, other]
    ((threat, again),) = Results(Path("nowhere"), records, runs).unseen.items()
    table = unseen_table(threat, again)
    assert table.headings[2:] == ["AA", "Δ", "verdict", "with other seeds", "against ‖∇m‖²"]
    by_variant = {row[1]: row[2:] for row in table.rows}
    assert by_variant["—"] == ["40.0", "", "", "", ""]
    assert by_variant["+ ‖∇m‖²"][4] == ""
    assert by_variant["+ TASER"][0] == "70.0"
    assert by_variant["+ TASER"][1].startswith("**+30.0 [")
    assert by_variant["+ TASER"][2] == "significant gain"
    assert by_variant["+ TASER"][4].startswith("**+10.0 [")
