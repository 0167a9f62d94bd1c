"""The command line as programs meet it: JSON alone on stdout, exit codes, completion."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from taser.cli import app
from taser.cli._options import (
    PlainErrors,
    json_wanted,
    print_json,
    progress_bar,
    show,
    with_json,
)


def answer(*arguments: str | Path) -> Any:
    """What a command prints with --json: stdout has to be JSON and nothing else."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_lists_are_json(tmp_path: Path) -> None:
    ready = {entry["name"]: entry["ready"] for entry in answer("data", "list", "--root", tmp_path)}
    assert ready["digits"]
    assert not ready["cifar10"]
    assert "digits/pgd" in answer("recipes")
    info = answer("data", "info", "digits")
    assert info["input_shape"] == [1, 8, 8]
    assert info["splits"] == {"train": 1295, "validation": 143, "test": 359}


def test_a_score_is_checked_for_a_machine(tmp_path: Path) -> None:
    model = tmp_path / "digits.safetensors"
    fit = ("score", "fit", "--out", model, "--steps", "2", "--width", "8")
    assert CliRunner().invoke(app, [*map(str, fit)]).exit_code == 0
    found = answer("score", "check", model, "-n", "64", "--out", tmp_path / "check")
    assert len(found["levels"]) == 5


@pytest.fixture
def noisy(tmp_path: Path) -> typer.Typer:
    """Two commands with much output: one prints by itself, one by `show`."""

    def own() -> None:
        print("from a library")
        typer.echo("from us")
        if json_wanted():
            print_json({"λ": 1})

    def given() -> None:
        print("from a library")
        (tmp_path / "figures.json").write_text("[1]\n")
        show(tmp_path / "report.html", ["a finding"], "figures.json")

    app = typer.Typer(cls=PlainErrors)
    app.command("own")(with_json(own))
    app.command("given")(with_json(given))
    return app


def test_stdout_holds_the_result_only(noisy: typer.Typer) -> None:
    result = CliRunner().invoke(noisy, ["own", "--json"])
    assert result.stdout == '{\n "λ": 1\n}\n'
    assert result.stderr == "from a library\nfrom us\n"
    assert CliRunner().invoke(noisy, ["own"]).stdout == "from a library\nfrom us\n"


def test_with_json_the_report_goes_to_stderr(noisy: typer.Typer) -> None:
    result = CliRunner().invoke(noisy, ["given", "--json"])
    assert result.stdout == "[1]\n"
    assert "a finding" in result.stderr
    plain = CliRunner().invoke(noisy, ["given"])
    assert "a finding" in plain.stdout
    assert "[1]" not in plain.stdout


def test_an_error_leaves_stdout_empty_and_as_it_was() -> None:
    before = sys.stdout
    result = CliRunner().invoke(app, ["data", "info", "digitz", "--json"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "did you mean" in result.stderr
    assert CliRunner().invoke(app, ["audit", "--json"]).exit_code == 2  # no model: wrong usage
    assert not json_wanted()
    assert sys.stdout is before


def test_another_commands_record_is_not_the_result(noisy: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[0]\n")
    assert CliRunner().invoke(noisy, ["given", "--json"]).stdout == "[1]\n"


def commands(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*names, name))
        else:
            yield (*names, name), command


EVERY = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("names", "command"), EVERY, ids=[" ".join(names) for names, _ in EVERY])
def test_every_command_has_an_example_of_itself(names: tuple[str, ...], command: Any) -> None:
    examples = [line for line in command.help.splitlines() if line.strip().startswith("Example:")]
    assert len(examples) == 1
    line = examples[0].split("Example: ")[1]
    assert line.startswith(f"taser {' '.join(names)}")
    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    used = {word for word in line.split() if word.startswith("-")}
    assert used <= known


@pytest.mark.parametrize(("names", "command"), EVERY, ids=[" ".join(names) for names, _ in EVERY])
def test_every_option_says_what_it_is(names: tuple[str, ...], command: Any) -> None:
    silent = [option.name for option in command.params if not getattr(option, "help", None)]
    assert not silent, f"{names} does not explain {silent}"


def test_options_have_one_name_everywhere() -> None:
    """A flag means the same in every command, by its name and by its help or kind."""
    flags = {names: {flag for o in command.params for flag in o.opts} for names, command in EVERY}
    for names in (("evaluate",), ("audit",), ("shift",), ("score", "check")):
        assert {"--data", "--examples", "-n", "--out", "--json", "--root"} <= flags[names]
    for names in (("compare",), ("demo",)):
        assert "--json" in flags[names]


WAITING = """
import signal, time, typer
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below `nohup … &`
from taser.cli._options import PlainErrors, progress_bar
app = typer.Typer(cls=PlainErrors)

@app.command()
def wait():
    with progress_bar():
        print("ready", flush=True)
        time.sleep(100)

@app.command()
def other(): ...

app()
"""


def test_ctrl_c_is_one_line_and_exit_code_130() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "wait"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "taser: stopped; the same command goes on" in said
    assert "Traceback" not in said


def test_progress_only_grows_in_a_stage_and_says_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("taser.cli._options.SECONDS_BETWEEN_LINES", -1.0)
    clock = iter(range(0, 1_000_000, 60))
    monkeypatch.setattr("rich.console.monotonic", lambda: next(clock))
    with progress_bar() as progress:
        for done in (10, 30, 20, 50):
            progress(done, 100, "training")
        progress(1, 4, "audit")
    lines = capsys.readouterr().err.splitlines()
    assert [line[:15] for line in lines] == [
        " 10%  training", " 30%  training,", " 30%  training,", " 50%  training,", " 25%  audit"
    ]  # fmt: skip
    assert re.fullmatch(r" 50%  training, about \d+ min left", lines[3])


@pytest.mark.parametrize(
    ("words", "expected"),
    [("taser ev", "evaluate"), ("taser audit --ep", "--epsilon"), ("taser data l", "list")],
)
def test_the_shell_completes(words: str, expected: str) -> None:
    environment = {
        **os.environ, "_TASER_COMPLETE": "complete_bash", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    code = "from taser.cli import app; app(prog_name='taser')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected]
