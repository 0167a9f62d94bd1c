"""The table of methods: its jobs, its rows, and one small table from command to report."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import taser
from taser.attacks import Threat
from taser.compare import _comparison as table
from taser.compare._comparison import do
from taser.compare._comparison_config import Search, TableConfig, job_name, read_table_config
from taser.compare._jobs import NotYet, Queue
from taser.compare._run_results import RunResult, rows
from taser.evaluation import Evaluation
from taser.evaluation._record import Provenance, Verdicts
from taser.report import _comparison_report as method_study
from taser.report._comparison_report import conclusion
from taser.report._method_tables import (
    PAPER,
    Finished,
    draw_frontier,
    families,
    main_table,
    paper_table,
    search_section,
    seed_table,
    summary,
)
from taser.report._page import Table
from taser.training import read_recipe, to_yaml


def run(variant: str, right: int, *, seed: int = 0, n: int = 100, method: str = "pgd") -> RunResult:
    """A run in which every example is right when clean, and the first `right` under attack."""
    standing = torch.arange(n) < right
    attack = Verdicts(standing, torch.zeros(n), torch.full((n,), -1), ("one",))
    record = Evaluation(
        Threat(), torch.arange(n), torch.zeros(n, dtype=torch.int64),
        torch.ones(n, dtype=torch.bool), {"autoattack": attack, "spsa": attack}, (),
        Provenance(0, 1, "", "", {}, {}),
    )  # fmt: skip
    seconds = {"off": 0.001, "taser": 0.002}.get(variant, 0.0015)
    return RunResult({
        "method": method, "variant": variant, "seed": seed, "finetuned": False,
        "seconds_per_example": seconds, "chosen": [], "closer": {},
        "clean": 1.0, "robust": right / n,
        "records": [json.loads(record.to_json())],
    })  # fmt: skip


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
    assert ours.supported("autoattack")
    assert ours.lasting("autoattack")
    assert not ours.supported("clean")
    assert not ours.lasting("clean")
    assert ours.overhead == pytest.approx(2.0)
    assert ours.average == pytest.approx(0.62)


def test_a_gain_that_scatters_over_seeds_is_supported_but_does_not_last() -> None:
    """+10 and +50 on the same 100 examples: sure of these networks, not of others."""
    runs = [run("off", 40), run("off", 40, seed=1), run("taser", 50), run("taser", 90, seed=1)]
    found = rows(runs, ["clean", "autoattack"])
    assert found[1].supported("autoattack")
    assert not found[1].lasting("autoattack")
    first, sentence = summary(found)
    assert "for 1 of 1 comparisons, and for 0 of these" in first
    assert "with other seeds)" in sentence
    shown = seed_table(found)
    assert shown is not None
    assert shown.rows[0][2:] == [
        "2",
        "+0.0 … +0.0",
        "[-3.6, 3.6]",
        "+10.0 … +50.0",
        "[-100.0, 100.0]",
    ]


def test_one_seed_says_nothing_of_others() -> None:
    found = rows([run("off", 40), run("taser", 60)], ["clean", "autoattack"])
    assert found[1].gain_retrained is None
    assert "other seeds" not in " ".join(summary(found))
    assert seed_table(found) is None


def test_rows_begin_with_the_method_alone_and_taser() -> None:
    """A queue goes by names, in which "gradient" is first."""
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


def test_the_summary_names_gain_cost_and_control() -> None:
    found = rows([run("off", 40), run("taser", 60), run("gradient", 70)], ["clean", "autoattack"])
    lines = summary(found)
    assert "1 of 1" in lines[0]
    assert "raised" in lines[1]
    assert "isotropic penalty +30.0" in lines[1]
    lower = summary(rows([run("off", 40), run("taser", 20)], ["clean", "autoattack"]))
    assert "lowered" in lower[1]


def test_the_papers_figures_are_its_own() -> None:
    """Averages as printed in Table 2, but for MART + AWP with TASER, where the paper slips."""
    printed = {
        "standard": (3.0, 19.25), "pgd": (24.25, 33.35), "trades": (27.35, 33.95),
        "mart": (26.35, 35.0), "trades-awp": (34.05, 36.2), "mart-awp": (32.3, 39.25),
    }  # fmt: skip
    for method, averages in printed.items():
        for figures, average in zip(PAPER[method][:2], averages, strict=True):
            assert sum(figures[1:]) / 2 == pytest.approx(average)
    assert len(paper_table(rows([run("off", 1)], ["clean"])).rows) == 12


def test_jobs_of_a_table() -> None:
    config = TableConfig(
        methods=("pgd",), variants={"off": [], "taser": ["regulariser.name=taser"]}, seeds=(0, 1),
        tuned={"taser": {"pgd": ["regulariser.weight=0.5"]}}, scratch=("off",),
        finetune=["loop.epochs=2"],
    )  # fmt: skip
    jobs = config.jobs()
    assert list(jobs) == sorted(jobs)
    tuned = jobs["0-3-tune-1-pgd-taser"]
    assert tuned["start"] == "0-2-train-1-pgd-off"
    assert tuned["overrides"] == [
        "loop.epochs=2", "regulariser.name=taser", "regulariser.weight=0.5", "loop.seed=0"
    ]  # fmt: skip
    assert "0-2-train-1-pgd-taser" not in jobs
    with pytest.raises(ValueError, match="off"):
        TableConfig(variants={"taser": []})


def test_folders_have_plain_names() -> None:
    """Which every file system and archive bears."""
    assert job_name("pgd", "taser λ=0.1", 0) == "0-2-train-1-pgd-taser_lambda=0.1"
    assert job_name("pgd", "t = 10 without c_t", 2) == "2-2-train-1-pgd-t_=_10_without_c_t"


def test_a_search_chooses_on_the_validation_split(tmp_path: Path) -> None:
    """off's rate first, which the others take; then λ, with no more than the allowed clean cost."""
    search = Search(
        candidates={"off": [["optimiser.rate=0.1"], ["optimiser.rate=0.2"]],
                    "taser": [["regulariser.weight=1"], ["regulariser.weight=2"]]},
        overrides=["loop.epochs=1"], shared={"mart": "pgd"}, clean_cost={"pgd": 0.05},
    )  # fmt: skip
    config = TableConfig(methods=("pgd", "mart"), search=search)
    jobs = config.jobs()
    assert sum("1-search" in name for name in jobs) == 4  # mart has none of its own
    queue = Queue(tmp_path)
    queue.add(jobs)
    figures = {"off-0": (0.9, 0.4), "off-1": (0.9, 0.5), "taser-0": (0.86, 0.6),
               "taser-1": (0.8, 0.7)}  # fmt: skip
    asked = "0-2-train-3-mart-taser"
    with pytest.raises(NotYet, match="off-0"):
        do(tmp_path / asked, jobs[asked], None)
    for name, job in jobs.items():
        if "candidate" in job:
            clean, robust = figures["-".join(name.split("-")[-2:])]
            found = {"clean": clean, "robust": robust, "candidate": job["candidate"]}
            (tmp_path / name / "result.json").write_text(json.dumps(found))
    chosen = table.chosen(queue, jobs[asked]["choices"])
    assert chosen == ["optimiser.rate=0.2", "regulariser.weight=1"]
    assert table.chosen(queue, jobs["0-2-train-1-pgd-off"]["choices"]) == ["optimiser.rate=0.2"]
    better = next(name for name in jobs if name.endswith("pgd-off-1"))
    (tmp_path / better / "result.json").unlink()
    (tmp_path / better / "error.txt").write_text("the loss is not finite")
    assert table.chosen(queue, jobs["0-2-train-1-pgd-off"]["choices"]) == ["optimiser.rate=0.1"]


VARIANTS: dict[str, list[str]] = {"off": [], "taser": [], "gradient": []}


def test_an_unfair_search_is_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        TableConfig(search={"candidates": {"off": [[]], "taser": [[], []], "gradient": [[]]}},
                    variants=VARIANTS)  # fmt: skip
    with pytest.raises(ValueError, match="candidates of off"):
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
    config = TableConfig(
        methods=("standard", "pgd", "trades"), variants=VARIANTS,
        search={"candidates": tried, "shared": shared},
    )  # fmt: skip
    jobs = config.jobs()
    asked = {name: job["candidate"] for name, job in jobs.items() if "candidate" in job}
    assert asked["0-1-search-0-standard-taser-1"] == ["regulariser.timestep=8"]
    assert asked["0-1-search-1-pgd-gradient-0"] == ["regulariser.weight=4"]
    assert len(asked) == 2 + 2 + 2 + 1 + 1
    choices = jobs["0-2-train-2-trades-taser"]["choices"]
    assert choices[-1]["among"] == ["0-1-search-1-pgd-taser-0"]
    uneven = {**tried, "gradient": {**tried["gradient"], "standard": [["regulariser.weight=2"]]}}
    with pytest.raises(ValueError, match="equally many settings of each variant; standard"):
        TableConfig(methods=("standard",), variants=VARIANTS, search={"candidates": uneven})
    with pytest.raises(ValueError, match="of taser has lists for standard, pgd, but none for mart"):
        TableConfig(methods=("mart",), variants=VARIANTS, search={"candidates": tried})


def test_an_attack_on_fewer_examples() -> None:
    """What SPSA breaks of its part counts in the worst case; all else is AutoAttack's."""
    whole, part = run("off", 40), run("off", 3, n=10)
    for each, attack in ((whole, "spsa"), (part, "autoattack")):
        del each.evaluations[0].attacks[attack]
    whole.evaluations.append(part.evaluations[0])
    assert whole.correct("spsa").shape == (10,)
    assert whole.correct("worst").sum() == 33
    assert whole.average == pytest.approx((0.4 + 0.3) / 2)
    row = rows([whole], ["clean", "autoattack", "spsa", "worst"])[0]
    assert row.n == {"clean": 100, "autoattack": 100, "spsa": 10, "worst": 100}
    assert "n = 100 (SPSA 10) and 1 seed" in main_table([row]).caption


def test_curves_are_in_the_order_of_lambda() -> None:
    found = rows(
        [run("off", 1), run("taser λ=0.1", 30), run("taser λ=0.03", 20), run("other", 3)],
        ["clean", "autoattack"],
    )
    curves = families(found)
    assert [row.variant for row in curves["taser"]] == ["taser λ=0.03", "taser λ=0.1"]
    assert list(curves) == ["taser"]
    assert draw_frontier(found) is not None
    assert draw_frontier(found[:1]) is None


STUDIES = Path(taser.__file__).parent / "recipes" / "studies"


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.yaml")))
def test_shipped_tables_can_be_read(name: str) -> None:
    """With the recipe of every run."""
    assert read_table_config(f"studies/{name}").jobs()


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("recipe: digits\nmethds: [pgd]\n")
    with pytest.raises(ValueError, match="methds"):
        read_table_config(tmp_path / "t.yaml")


def worked(config: TableConfig, folder: Path) -> Queue:
    """Its queue with every run done."""
    queue = Queue(folder / "runs")
    queue.add(config.jobs())
    queue.work(do, queue.names())
    assert not queue.failures()
    return queue


def test_a_small_table_from_training_to_report(tmp_path: Path) -> None:
    config = TableConfig(
        methods=("standard",), n=60, epsilon=0.1, attacks=("fgsm",),
        overrides=["loop.epochs=1", "data.examples=200", "loop.batch=64", "validation.steps=1",
                   "model.width=4", "loop.threads=1"],
        scratch=("off",), finetune=["loop.epochs=1"], audited=10,
    )  # fmt: skip
    queue = worked(config, tmp_path)
    page, _ = method_study.write(Finished.of(queue), tmp_path, title="Small")
    text = page.read_text()
    assert "Fine-tuned" in text
    assert "Trained from scratch" in text
    assert "Accuracy against ε" in text
    assert "Stein residuals" in text
    assert "Where sensitivity points" in text
    assert "What is attacked" in text
    assert "Configuration and versions" in text
    entries = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["variant"], row["finetuned"]) for row in entries} == {
        ("off", False), ("off", True), ("taser", True)
    }  # fmt: skip
    runs = Finished.of(queue).runs
    (audit,) = (run.closer["audit"] for run in runs if "audit" in run.closer)
    assert audit["n"] >= 30  # of ten too few are right, so more are asked
    assert audit["given"] > 10
    assert (tmp_path / "table.tex").read_text().count(r"\begin{tabular}") == 8


def test_a_study_of_a_table_of_features(tmp_path: Path) -> None:
    """Which lie outside of [0, 1], so that attacks have no box."""
    config = TableConfig(
        methods=("standard",), variants={"off": [], "gradient": ["regulariser.name=gradient-norm"]},
        n=60, epsilon=0.1, attacks=("fgsm",), audited=40,
        overrides=["data.name=breast-cancer", "data.augment=none", "model.name=mlp",
                   "model.width=8", "loop.epochs=3", "validation.steps=1", "loop.threads=1"],
    )  # fmt: skip
    queue = worked(config, tmp_path)
    page, _ = method_study.write(Finished.of(queue), tmp_path, title="Features")
    assert "Accuracy against ε" in page.read_text()


def test_an_interval_knows_that_seeds_answer_the_same_examples() -> None:
    """Three copies of one network say no more than one of them."""
    once = rows([run("off", 40), run("taser", 60)], ["autoattack"])[1]
    runs = [run(variant, right, seed=seed) for variant, right in (("off", 40), ("taser", 60))
            for seed in range(3)]  # fmt: skip
    thrice = rows(runs, ["autoattack"])[1]
    assert once.gain is not None
    assert thrice.gain is not None
    assert thrice.gain["autoattack"] == once.gain["autoattack"]
    assert thrice.accuracy["autoattack"] == once.accuracy["autoattack"]


def test_latex_escapes_what_it_would_read_as_its_own() -> None:
    text = Table(["method", "variant"], [["t_t & 50 %", "taser λ=0.1 ‖∇m‖² **+1 {a}**"]]).latex()
    assert r"t\_t \& 50 \%" in text
    assert r"$\lambda$=0.1 $\|$$\nabla$m$\|$$^2$ \textbf{+1 \{a\}}" in text


def searched(folder: Path) -> Queue:
    """A queue whose search tried the same settings for both penalties."""
    queue = Queue(folder)
    tried = [["regulariser.weight=1"], ["regulariser.weight=1", "regulariser.timestep=400"]]
    config = TableConfig(
        methods=("pgd",),
        variants={"off": [], "taser": [], "gradient": []},
        search=Search(candidates={"off": [[]], "taser": tried, "gradient": tried}),
    )
    queue.add(config.jobs())
    return queue


def test_what_a_search_took_is_told_by_variant(tmp_path: Path) -> None:
    queue = searched(tmp_path)
    for variant, own in (("taser", []), ("gradient", ["regulariser.timestep=400"])):
        result = {"chosen": ["optimiser.rate=0.1", "regulariser.weight=1", *own]}
        home = tmp_path / f"0-2-train-1-pgd-{variant}"
        (home / "result.json").write_text(json.dumps(result))
    ((_, (found,)),) = search_section(queue)
    assert isinstance(found, Table)
    taken = {(row[1], row[2]) for row in found.rows if row[-1] == "taken"}
    assert taken == {
        ("+ TASER", "regulariser.weight=1"),
        ("+ ‖∇m‖²", "regulariser.weight=1, regulariser.timestep=400"),
    }


def test_a_report_of_the_first_finished_run_alone(tmp_path: Path) -> None:
    """With one worker that may be the control's, and its log may be gone."""
    only = run("gradient", 3)
    only.closer = {"curve": {"epsilons": [0, 1], "accuracies": [1, 0], "n": 9, "attack": "pgd"},
                   "residuals": [0.1, 0.2]}  # fmt: skip
    study = Finished(searched(tmp_path / "runs"), [only])
    page, lines = method_study.write(study, tmp_path, title="So far")
    assert "Stein residuals" not in page.read_text()
    assert "Where sensitivity points" not in page.read_text()
    assert "Runs for the search" in (tmp_path / "table.md").read_text()
    assert lines == ["No run with TASER is finished yet."]
    assert not (tmp_path / "frontier.png").exists()


def test_a_report_of_several_lambda_has_its_picture_as_a_file(tmp_path: Path) -> None:
    made = [run("off", 1), run("taser λ=0.1", 30), run("gradient λ=1", 20)]
    method_study.write(Finished(searched(tmp_path / "runs"), made), tmp_path, title="Curves")
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"search": {"candidate": {}}}, "did you mean 'candidates'"),
        ({"search": {"candidates": {"off": [[]], "tasre": [[]]}}}, "'tasre', which is no variant"),
        ({"tuned": {"tasre": {}}}, "tuned names 'tasre'"),
        ({"scratch": ["off", "tasre"]}, "scratch names 'tasre'"),
        ({"attacks": ["autoatack"]}, "no attack 'autoatack'"),
        ({"fewer": {"spas": 10}}, "no attack 'spas'"),
        ({"fewer": {"spsa": 0}}, "spsa should be at least 1 example"),
        ({"n": -3}, "n should be at least 1 example"),
        ({"norm": "l3"}, "norm"),
        ({"methods": "pgd"}, r"methods should be a list, such as \[pgd\]"),
        ({"seeds": 3}, "seeds should be a list"),
        ({"variants": {"off": [], "taser": "regulariser.name=taser"}}, "taser should be a list"),
        ({"variants": {False: []}}, 'in YAML in quotes, "off"'),
        ({"search": {"candidates": [1]}}, "lists of lists of overrides"),
        ({"search": {"candidates": {"off": [[1]]}}}, "lists of lists of overrides"),
        (
            {"methods": ["pgd"], "search": {"candidates": {"off": {"pgd": []}}}},
            "candidates of off, and for pgd it has none",
        ),
    ],
)
def test_typing_errors_further_in_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableConfig(**wrong)


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
        read_table_config(path)


def test_the_recipe_of_a_run_is_no_study() -> None:
    with pytest.raises(ValueError, match="is the recipe of a run: `taser train"):
        read_table_config("digits/pgd")


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [(["trust", "trust"], "found nothing"), (["trust", "do not trust"], "checks that fail"),
     (["trust", "not audited: too few"], "could not be made"), ([], "could not be made")],
)  # fmt: skip
def test_the_demonstration_says_what_the_audit_said(verdicts: list[str], words: str) -> None:
    runs = []
    for variant in ("off", "taser"):
        runs.append(run(variant, 50, method="standard"))
    found = rows(runs, ["clean", "autoattack", "worst"])
    for number, verdict in enumerate(verdicts):
        runs[number].closer = {"audit": {"verdict": verdict}}
    assert words in conclusion(found, runs)[1]


def test_seeds_of_another_recipe_are_not_mixed(tmp_path: Path) -> None:
    """A kept study goes on by the recipes of today, which may name another penalty."""
    config = TableConfig(
        methods=("standard",), seeds=(0, 1), n=4, attacks=("fgsm",), epsilon=0.1,
        overrides=["data.examples=64", "loop.epochs=1", "validation.examples=8", "model.width=4"],
    )  # fmt: skip
    queue = Queue(tmp_path)
    queue.add(config.jobs())
    first, second = (job_name("standard", "taser", seed) for seed in (0, 1))
    (tmp_path / first / "run").mkdir()
    drawn = ["regulariser.name=taser", "regulariser.form=paired"]
    (tmp_path / first / "run" / "config.yaml").write_text(
        to_yaml(read_recipe("digits/standard", drawn))
    )
    (tmp_path / first / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"had regulariser.form=paired, and this run .* steepest"):
        do(tmp_path / second, queue.job(second), None)


def test_a_search_may_try_several_noise_levels(tmp_path: Path) -> None:
    """Its candidates are to differ; in what they do not name they are still to be alike."""
    tried = [["regulariser.timestep=20"], ["regulariser.timestep=200"]]
    small = ["loop.epochs=1", "data.examples=64", "model.width=2", "regulariser.name=taser"]
    search = Search(candidates={"off": [[]], "taser": tried}, overrides=small)
    jobs = TableConfig(methods=("standard",), search=search).jobs()
    queue = Queue(tmp_path)
    queue.add(jobs)
    queue.work(do, [name for name in jobs if "1-search" in name])
    assert not queue.failures()
    last = "0-1-search-0-standard-taser-1"
    other = {**jobs[last], "overrides": [*jobs[last]["overrides"], "regulariser.operator=langevin"]}
    with pytest.raises(ValueError, match=r"taser-0 had regulariser.operator=None"):
        do(tmp_path / last, other, None)
