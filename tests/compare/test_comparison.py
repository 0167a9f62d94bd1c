"""A comparison: its jobs, its rows, and a small one from its configuration to its report."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import taser
from taser._settings import from_mapping
from taser.attacks import Threat
from taser.compare import (
    ComparisonConfig,
    Results,
    RunResult,
    Search,
    compare,
    read_comparison,
    read_results,
    rows,
)
from taser.compare._comparison import chosen_overrides, run_job
from taser.compare._comparison_config import job_name
from taser.compare._comparison_records import read_records
from taser.compare._runs import Call, Runs
from taser.evaluation import Evaluation
from taser.evaluation._record import Provenance, Verdicts
from taser.report import write_comparison
from taser.report._comparison_tables import (
    audit_table,
    cost_table,
    main_table,
    search_table,
    seed_table,
)
from taser.report._page import Table
from taser.training import read_recipe, to_yaml


def run(variant: str, right: int, *, seed: int = 0, n: int = 100, method: str = "pgd") -> RunResult:
    """A run in which every clean example is correct, and the first `right` under attack."""
    standing = torch.arange(n) < right
    attack = Verdicts(standing, torch.zeros(n), torch.full((n,), -1), ("one",))
    record = Evaluation(
        Threat(), torch.arange(n), torch.zeros(n, dtype=torch.int64),
        torch.ones(n, dtype=torch.bool), {"autoattack": attack, "spsa": attack}, (),
        Provenance(0, 1, "", "", {}, {}),
    )  # fmt: skip
    seconds = {"off": 0.001, "taser": 0.002}.get(variant, 0.0015)
    job = {"method": method, "variant": variant, "seed": seed, "finetuned": False}
    figures = {"seconds_per_example": seconds, "chosen": [], "clean": 1.0, "robust": right / n}
    return RunResult({
        "run": job_name(method, variant, seed), "diagnostics": {}, "result": {**job, **figures},
        "job": {**job, "recipe": f"digits/{method}", "overrides": []},
        "evaluations": [json.loads(record.to_json())],
    })  # fmt: skip


def results_of(runs: list[RunResult]) -> Results:
    return Results(Path("nowhere"), [each.record for each in runs], runs)


def test_rows_average_seeds_and_pair_examples() -> None:
    runs = [run("off", 40), run("off", 44, seed=1), run("taser", 60), run("taser", 64, seed=1)]
    off, ours = rows(runs, ["clean", "autoattack", "worst"])
    assert off.gain is None
    assert ours.gain is not None
    assert ours.n["clean"] == 100
    assert ours.gain_range is not None
    assert ours.gain_range["autoattack"] == pytest.approx((0.2, 0.2))
    assert ours.accuracy["autoattack"].value == pytest.approx(0.62)
    assert ours.gain["autoattack"].value == pytest.approx(0.2)
    assert ours.gain["autoattack"].low > 0
    assert ours.gain_retrained is not None
    assert ours.gain_retrained["autoattack"].low > 0
    assert not ours.gain["clean"].excludes_zero()
    assert not ours.gain_retrained["clean"].excludes_zero()
    assert ours.overhead == pytest.approx(2.0)


def test_a_gain_that_scatters_over_seeds_is_significant_for_these_networks_alone() -> None:
    """+10 and +50 on the same 100 examples."""
    runs = [run("off", 40), run("off", 40, seed=1), run("taser", 50), run("taser", 90, seed=1)]
    found = rows(runs, ["clean", "autoattack"])
    assert found[1].verdict == "significant gain"
    shown = seed_table(found)
    assert shown is not None
    assert shown.rows[0][2:] == [
        "2",
        "+0.0 … +0.0",
        "[-3.6, 3.6]",
        "+10.0 … +50.0",
        "[-100.0, 100.0]",
        "no significant difference",
    ]


def test_one_seed_has_no_interval_over_seeds() -> None:
    found = rows([run("off", 40), run("taser", 60)], ["clean", "autoattack"])
    assert found[1].gain_retrained is None
    assert seed_table(found) is None


def test_rows_begin_with_the_method_alone_and_taser() -> None:
    """Jobs go by names, in which "gradient" is first."""
    runs = [run(variant, 10, method=method) for method in ("standard", "pgd")
            for variant in ("gradient", "off", "other", "taser")]  # fmt: skip
    found = [(row.method, row.variant) for row in rows(runs, ["clean"])]
    order = ["off", "taser", "gradient", "other"]
    assert found == [(method, variant) for method in ("standard", "pgd") for variant in order]


def test_a_table_of_unfinished_seeds_says_so() -> None:
    runs = [run("off", 40), run("off", 44, seed=1), run("taser", 60)]
    assert "n = 100 and 1 to 2 seeds" in main_table(rows(runs, ["clean", "autoattack"])).caption


def test_only_what_the_interval_supports_is_bold() -> None:
    found = main_table(rows([run("off", 40), run("taser", 60)], ["clean", "autoattack"]))
    assert "**+20.0" in found.rows[1][5]
    same = main_table(rows([run("off", 40), run("taser", 41)], ["clean", "autoattack"]))
    assert "**" not in same.rows[1][5]
    assert r"\textbf{+20.0" in found.latex()


@pytest.mark.parametrize(
    ("right", "verdict"),
    [(60, "significant gain"), (41, "no significant difference"), (20, "significant loss")],
)
def test_every_row_has_a_verdict(right: int, verdict: str) -> None:
    found = rows([run("off", 40), run("taser", right)], ["clean", "autoattack", "worst"])
    table = main_table(found)
    assert table.headings[-1] == "verdict"
    assert [line[-1] for line in table.rows] == ["", verdict]
    assert "The verdict is on AA." in table.caption


def test_costs() -> None:
    found = rows([run("off", 40), run("taser", 60)], ["clean", "autoattack", "spsa"])
    table = cost_table(found)
    assert table.headings == ["method", "variant", "SPSA", "Δ", "ms/example", "overhead"]
    assert table.rows[1][2] == "60.0"
    assert table.rows[1][-2:] == ["2", "×2.0"]


def test_jobs_of_a_table() -> None:
    config = ComparisonConfig(
        methods=("pgd",), variants={"off": [], "taser": ["regulariser.name=taser"]}, seeds=(0, 1),
        tuned={"taser": {"pgd": ["regulariser.weight=0.5"]}}, scratch=("off",),
        finetune=["loop.epochs=2"],
    )  # fmt: skip
    jobs = config.runs()
    assert list(jobs) == sorted(jobs)
    tuned = jobs["0-3-tune-1-pgd-taser"]
    assert tuned["start"] == "0-2-train-1-pgd-off"
    assert tuned["overrides"] == [
        "loop.epochs=2", "regulariser.name=taser", "regulariser.weight=0.5", "loop.seed=0"
    ]  # fmt: skip
    assert "0-2-train-1-pgd-taser" not in jobs
    with pytest.raises(ValueError, match="off"):
        ComparisonConfig(variants={"taser": []})


def test_folders_have_plain_names() -> None:
    """Valid on every file system and in every archive."""
    assert job_name("pgd", "taser λ=0.1", 0) == "0-2-train-1-pgd-taser_lambda=0.1"
    assert job_name("pgd", "t = 10 without c_t", 2) == "2-2-train-1-pgd-t_=_10_without_c_t"


def test_a_search_chooses_on_the_validation_split(tmp_path: Path) -> None:
    """off's rate first, which the others take; then λ, with no more than the allowed clean cost."""
    search = Search(
        candidates={"off": [["optimiser.rate=0.1"], ["optimiser.rate=0.2"]],
                    "taser": [["regulariser.weight=1"], ["regulariser.weight=2"]]},
        overrides=["loop.epochs=1"], shared={"mart": "pgd"}, clean_cost={"pgd": 0.05},
    )  # fmt: skip
    config = ComparisonConfig(methods=("pgd", "mart"), search=search)
    jobs = config.runs()
    assert sum("1-search" in name for name in jobs) == 4  # mart has none of its own
    runs = Runs(tmp_path)
    runs.add(jobs)
    figures = {"off-0": (0.9, 0.4), "off-1": (0.9, 0.5), "taser-0": (0.86, 0.6),
               "taser-1": (0.8, 0.7)}  # fmt: skip
    asked = "0-2-train-3-mart-taser"
    with pytest.raises(RuntimeError, match=r"this run needs .*off-0, which is not finished"):
        run_job(tmp_path / asked, jobs[asked], None)
    for name, job in jobs.items():
        if "candidate" in job:
            clean, robust = figures["-".join(name.split("-")[-2:])]
            found = {"clean": clean, "robust": robust, "candidate": job["candidate"]}
            (tmp_path / name / "result.json").write_text(json.dumps(found))
    chosen = chosen_overrides(runs, jobs[asked]["choices"])
    assert chosen == ["optimiser.rate=0.2", "regulariser.weight=1"]
    assert chosen_overrides(runs, jobs["0-2-train-1-pgd-off"]["choices"]) == ["optimiser.rate=0.2"]
    unsafe = dict(
        jobs[asked]["choices"][1], clean_cost=0.01
    )  # none loses that little: the cleanest
    assert chosen_overrides(runs, [jobs[asked]["choices"][0], unsafe])[1] == "regulariser.weight=1"
    better = next(name for name in jobs if name.endswith("pgd-off-1"))
    (tmp_path / better / "result.json").unlink()
    (tmp_path / better / "error.txt").write_text("the loss is not finite")
    assert chosen_overrides(runs, jobs["0-2-train-1-pgd-off"]["choices"]) == ["optimiser.rate=0.1"]


VARIANTS: dict[str, list[str]] = {"off": [], "taser": [], "gradient": []}


def test_an_unfair_search_is_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        ComparisonConfig(search=Search({"off": [[]], "taser": [[], []], "gradient": [[]]}),
                    variants=VARIANTS)  # fmt: skip
    with pytest.raises(ValueError, match="needs an entry 'off'"):
        Search(candidates={"taser": [[]]})


def test_candidates_may_differ_by_method() -> None:
    """Where methods want other noise levels, say; each penalty has as many, method by method."""
    tried = {
        "off": [["optimiser.rate=0.1"]],
        "taser": {"standard": [["regulariser.timestep=9"], ["regulariser.timestep=8"]],
                  "pgd": [["regulariser.weight=1"]]},
        "gradient": {"standard": [["regulariser.weight=2"], ["regulariser.weight=3"]],
                     "pgd": [["regulariser.weight=4"]]},
    }  # fmt: skip
    shared = {"trades": "pgd"}
    config = ComparisonConfig(
        methods=("standard", "pgd", "trades"), variants=VARIANTS,
        search=Search(tried, shared=shared),
    )  # fmt: skip
    jobs = config.runs()
    asked = {name: job["candidate"] for name, job in jobs.items() if "candidate" in job}
    assert asked["0-1-search-0-standard-taser-1"] == ["regulariser.timestep=8"]
    assert asked["0-1-search-1-pgd-gradient-0"] == ["regulariser.weight=4"]
    assert len(asked) == 2 + 2 + 2 + 1 + 1
    choices = jobs["0-2-train-2-trades-taser"]["choices"]
    assert choices[-1]["among"] == ["0-1-search-1-pgd-taser-0"]
    uneven = {**tried, "gradient": {**tried["gradient"], "standard": [["regulariser.weight=2"]]}}
    with pytest.raises(ValueError, match="equally many settings of each variant; standard"):
        ComparisonConfig(methods=("standard",), variants=VARIANTS, search=Search(uneven))
    with pytest.raises(ValueError, match=r"taser has lists for standard, pgd, but none for mart"):
        ComparisonConfig(methods=("mart",), variants=VARIANTS, search=Search(tried))


def test_an_attack_on_fewer_examples() -> None:
    """What SPSA breaks of its part counts in the worst case; all else is AutoAttack's."""
    whole, part = run("off", 40), run("off", 3, n=10)
    for each, attack in ((whole, "spsa"), (part, "autoattack")):
        del each.evaluations[0].attacks[attack]
    whole.evaluations.append(part.evaluations[0])
    assert whole.correct("spsa").shape == (10,)
    assert whole.correct("worst").sum() == 33
    row = rows([whole], ["clean", "autoattack", "spsa", "worst"])[0]
    assert row.n == {"clean": 100, "autoattack": 100, "spsa": 10, "worst": 100}
    assert "n = 100 (SPSA 10) and 1 seed" in main_table([row]).caption


SHIPPED = Path(taser.__file__).parent / "recipes" / "compare"


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_shipped_comparisons_can_be_read(name: str) -> None:
    """With the recipe of every run; as "digits" or "compare/digits"."""
    assert read_comparison(name).runs() == read_comparison(f"compare/{name}").runs()


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("recipe: digits\nmethds: [pgd]\n")
    with pytest.raises(ValueError, match="methds"):
        read_comparison(tmp_path / "t.yaml")


def finished(config: ComparisonConfig, folder: Path) -> Results:
    """The results of a comparison, all of whose runs are done in this process."""
    runs = Runs(folder / "runs")
    runs.add(config.runs())
    for name in runs.names():
        Call(runs.folder / name, run_job)()
    assert not runs.failures()
    return read_results(folder)


def test_a_small_comparison_from_training_to_report(tmp_path: Path) -> None:
    config = ComparisonConfig(
        methods=("standard",), n=60, epsilon=0.1, attacks=("fgsm",),
        overrides=["loop.epochs=1", "data.examples=200", "loop.batch=64", "validation.steps=1",
                   "model.width=4", "loop.threads=1"],
        scratch=("off",), finetune=["loop.epochs=1"], audited=10,
    )  # fmt: skip
    results = finished(config, tmp_path)
    text = write_comparison(results, tmp_path, title="Small").read_text()
    assert "All 3 runs are finished" in text
    summary = text[text.index("summary") : text.index("</p>")]
    assert "Accuracy under fgsm without → with TASER: Standard (fine-tuned) " in summary
    assert "Fine-tuned" in text
    assert "Trained from scratch" in text
    for heading in ("Accuracy against ε", "Attacked images", "Configuration and versions"):
        assert heading in text
    entries = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert {(row["variant"], row["finetuned"]) for row in entries} == {
        ("off", False), ("off", True), ("taser", True)
    }  # fmt: skip
    (audit,) = (run.diagnostics["audit"] for run in results.runs if "audit" in run.diagnostics)
    assert audit["n"] >= 30  # of ten too few are correct, so more are used
    assert audit["given"] > 10
    assert (tmp_path / "table.tex").read_text().count(r"\begin{tabular}") == 5


def test_a_comparison_on_a_table_of_features(tmp_path: Path) -> None:
    """Features lie outside of [0, 1], so attacks have no box."""
    config = ComparisonConfig(
        methods=("standard",), variants={"off": [], "gradient": ["regulariser.name=gradient-norm"]},
        n=60, epsilon=0.1, attacks=("fgsm",), audited=40,
        overrides=["data.name=breast-cancer", "data.augment=none", "model.name=mlp",
                   "model.width=8", "loop.epochs=3", "validation.steps=1", "loop.threads=1"],
    )  # fmt: skip
    page = write_comparison(finished(config, tmp_path), tmp_path)
    assert "Accuracy against ε" in page.read_text()


def test_python_compares_in_processes_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({
        "methods": ["standard"], "variants": {"off": []}, "n": 10, "epsilon": 0.1,
        "attacks": ["fgsm"], "overrides": ["loop.epochs=1", "data.examples=64", "model.width=2"],
    }))  # fmt: skip
    (row,) = compare(path, tmp_path / "out", jobs=2).rows()
    assert (row.method, row.variant, row.n["fgsm"]) == ("standard", "off", 10)


def test_an_interval_pairs_the_examples_of_all_seeds() -> None:
    """Three copies of one network give no more evidence than one."""
    once = rows([run("off", 40), run("taser", 60)], ["autoattack"])[1]
    runs = [run(variant, right, seed=seed) for variant, right in (("off", 40), ("taser", 60))
            for seed in range(3)]  # fmt: skip
    thrice = rows(runs, ["autoattack"])[1]
    assert once.gain is not None
    assert thrice.gain is not None
    assert thrice.gain["autoattack"] == once.gain["autoattack"]
    assert thrice.accuracy["autoattack"] == once.accuracy["autoattack"]


def test_special_characters_are_escaped_in_latex() -> None:
    text = Table(["method", "variant"], [["t_t & 50 %", "taser λ=0.1 ‖∇m‖² **+1 {a}**"]]).latex()
    assert r"t\_t \& 50 \%" in text
    assert r"$\lambda$=0.1 $\|$$\nabla$m$\|$$^2$ \textbf{+1 \{a\}}" in text


def searched(folder: Path) -> Runs:
    """Runs whose search tried the same settings for both penalties."""
    runs = Runs(folder)
    tried = [["regulariser.weight=1"], ["regulariser.weight=1", "regulariser.timestep=400"]]
    config = ComparisonConfig(
        methods=("pgd",),
        variants={"off": [], "taser": [], "gradient": []},
        search=Search(candidates={"off": [[]], "taser": tried, "gradient": tried}),
    )
    runs.add(config.runs())
    return runs


def test_the_table_of_a_search_marks_what_was_chosen(tmp_path: Path) -> None:
    runs = searched(tmp_path / "runs")
    made = []
    for variant, own in (("taser", []), ("gradient", ["regulariser.timestep=400"])):
        made.append(run(variant, 3))
        made[-1].chosen = ["optimiser.rate=0.1", "regulariser.weight=1", *own]
    records = read_records(tmp_path)
    assert [record["run"] for record in records] == runs.names()
    found = search_table(Results(tmp_path, records, made))
    assert found is not None
    taken = {(row[1], row[2]) for row in found.rows if row[-1] == "chosen"}
    assert taken == {
        ("+ TASER", "regulariser.weight=1"),
        ("+ ‖∇m‖²", "regulariser.weight=1, regulariser.timestep=400"),
    }


def test_a_report_of_the_first_finished_run_alone(tmp_path: Path) -> None:
    """With one worker the first run may be the control's, without a log."""
    only = run("gradient", 3)
    only.diagnostics["curve"] = {"epsilons": [0, 1], "accuracies": [1, 0], "n": 9}
    searched(tmp_path / "runs")
    records = [*read_records(tmp_path), only.record]
    text = write_comparison(Results(tmp_path, records, [only]), tmp_path).read_text()
    assert "1 of 9 runs are finished" in text
    assert "Accuracy against ε" in text
    assert "Runs of the search" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"search": {"candidate": {}}}, "did you mean 'candidates'"),
        ({"search": {"candidates": {"off": [[]], "tasre": [[]]}}}, "'tasre', which is no variant"),
        ({"tuned": {"tasre": {}}}, "tuned names 'tasre'"),
        ({"scratch": ["off", "tasre"]}, "scratch names 'tasre'"),
        ({"attacks": ["autoatack"]}, "no attack called 'autoatack' .did you mean 'autoattack'"),
        ({"fewer": {"spas": 10}}, "no attack called 'spas'"),
        ({"fewer": {"spsa": 0}}, "fewer.spsa should be at least 1; got 0"),
        ({"n": -3}, "n should be at least 1; got -3"),
        ({"norm": "l3"}, "norm"),
        ({"methods": "pgd"}, r"study.yaml: methods should be a list; got 'pgd'"),
        ({"seeds": 3}, "seeds should be a list"),
        ({"variants": {"off": [], "taser": "regulariser.name=taser"}}, "taser should be a list"),
        ({"variants": {False: []}}, 'in YAML in quotes, "off"'),
        ({"search": {"candidates": [1]}}, "search.candidates should hold keys"),
        ({"search": {"candidates": {"off": [[1]]}}}, "lists of lists of overrides"),
        (
            {"methods": ["pgd"], "search": {"candidates": {"off": {"pgd": []}}}},
            "search.candidates has no entry 'off' for pgd",
        ),
    ],
)
def test_typing_errors_in_nested_keys_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mapping(ComparisonConfig, wrong, "study.yaml")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"recipe": "digit"}, "no recipe 'digit/standard'"),
        ({"methods": ["pdg"]}, "no recipe 'digits/pdg'"),
        ({"overrides": ["loop.epoch=1"]}, "did you mean 'epochs'"),
        ({"variants": {"off": [], "a b": [], "a_b": []}}, "two runs would be called"),
        (
            {
                "finetune": ["optimiser.rate=0.1"],
                "search": {"candidates": {"off": [["optimiser.rate=0.2"]]}},
            },
            "optimiser.rate is searched for, and set by finetune",
        ),
    ],
)
def test_runs_that_would_fail_are_refused_before_any_is_trained(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"methods": ["standard"], **wrong}))
    with pytest.raises(ValueError, match=message):
        read_comparison(path)


def test_a_comparison_that_does_not_ship_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"'digitz' \(did you mean 'digits'\?\); those that ship"):
        read_comparison("digitz")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """It would start the default comparison."""
    (tmp_path / "study.yaml").write_text("# recipe: digits\n")
    with pytest.raises(ValueError, match=r"study.yaml is empty; .* at least `recipe`"):
        read_comparison(tmp_path / "study.yaml")


def test_a_training_recipe_is_refused_as_a_comparison() -> None:
    with pytest.raises(ValueError, match="is a recipe for one run: `taser train"):
        read_comparison("digits/pgd")


def test_audits_have_a_table() -> None:
    made = [run("taser", 50, seed=seed) for seed in (0, 1)]
    check = {"name": "restarts", "status": "failed"}
    made[0].diagnostics["audit"] = {"verdict": "do not trust", "checks": [check], "n": 40}
    found = audit_table(results_of(made))
    assert found is not None
    assert found.rows == [["PGD + TASER", "0", "do not trust", "restarts", "40"]]
    assert audit_table(results_of(made[1:])) is None


def test_seeds_of_another_recipe_are_not_mixed(tmp_path: Path) -> None:
    """A kept comparison continues with today's recipes, which may name another penalty."""
    config = ComparisonConfig(
        methods=("standard",), seeds=(0, 1), n=4, attacks=("fgsm",), epsilon=0.1,
        overrides=["data.examples=64", "loop.epochs=1", "validation.examples=8", "model.width=4"],
    )  # fmt: skip
    runs = Runs(tmp_path)
    runs.add(config.runs())
    first, second = (job_name("standard", "taser", seed) for seed in (0, 1))
    (tmp_path / first / "run").mkdir()
    drawn = ["regulariser.name=taser", "regulariser.form=paired"]
    (tmp_path / first / "run" / "config.yaml").write_text(
        to_yaml(read_recipe("digits/standard", drawn))
    )
    (tmp_path / first / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"had regulariser.form=paired, and this run .* steepest"):
        run_job(tmp_path / second, runs.job(second), None)


def test_a_search_may_try_several_noise_levels(tmp_path: Path) -> None:
    """Candidates may differ in the noise level; all other keys have to be equal."""
    tried = [["regulariser.timestep=20"], ["regulariser.timestep=200"]]
    small = ["loop.epochs=1", "data.examples=64", "model.width=2", "regulariser.name=taser"]
    search = Search(candidates={"off": [[]], "taser": tried}, overrides=small)
    jobs = ComparisonConfig(methods=("standard",), search=search).runs()
    runs = Runs(tmp_path)
    runs.add(jobs)
    for name in jobs:
        if "1-search" in name:
            Call(tmp_path / name, run_job)()
    assert not runs.failures()
    last = "0-1-search-0-standard-taser-1"
    other = {**jobs[last], "overrides": [*jobs[last]["overrides"], "regulariser.operator=langevin"]}
    with pytest.raises(ValueError, match=r"taser-0 had regulariser.operator=None"):
        run_job(tmp_path / last, other, None)
