"""A run as a folder for others: it loads as the run does, and its card has measured figures."""

import json
import shutil
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, constants
from typer.testing import CliRunner

import taser
from taser.cli import app
from taser.report import export
from taser.training import load_trained, read_recipe, train

SMALL = [
    "loop.epochs=1", "loop.threads=1", "data.examples=200", "validation.examples=20",
    "validation.steps=1", "model.name=cnn", "model.width=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(read_recipe("digits/standard", SMALL), folder)
    return folder


@pytest.fixture(scope="module")
def evaluated(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, test = tmp_path_factory.mktemp("evaluated"), taser.data.load("digits").test
    record = taser.evaluate(
        load_trained(run), test.x, test.y, threat=taser.Threat("linf", 0.1), n=10,
        attacks=["autoattack"],
    )  # fmt: skip
    (out / "evaluation.json").write_text(record.to_json())
    return out


def test_the_exported_network_is_the_runs(run: Path, evaluated: Path, tmp_path: Path) -> None:
    out = export(run, tmp_path / "small", evaluations=[evaluated])
    x = taser.data.load("digits").test.x[:8]
    assert torch.equal(load_trained(out)(x), load_trained(run)(x))
    card, record = (out / "README.md").read_text(), (evaluated / "evaluation.json").read_text()
    accuracy = 100 * json.loads(record)["attacks"]["autoattack"]["accuracy"]
    assert f"{accuracy:.1f}" in card
    assert "10 test examples" in card
    assert 'load_trained("small")' in card
    listed = json.loads((out / "robustbench.json").read_text())
    assert float(listed["autoattack_acc"]) == pytest.approx(accuracy)
    assert listed["threat_model"] == "Linf"


def test_figures_of_other_weights_are_refused(run: Path, evaluated: Path, tmp_path: Path) -> None:
    record = json.loads((evaluated / "evaluation.json").read_text())
    record["provenance"]["weights"] = "0" * 64
    (tmp_path / "evaluation.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="is of other weights than those exported"):
        export(run, tmp_path / "out", evaluations=[tmp_path])
    with pytest.raises(FileNotFoundError, match="is not a folder of `taser evaluate`"):
        export(run, tmp_path / "out", evaluations=[run])
    with pytest.raises(ValueError, match="is not the folder of a training run"):
        export(evaluated, tmp_path / "out")
    with pytest.raises(FileExistsError, match="is not empty"):
        export(run, evaluated)
    assert not (tmp_path / "out").exists()


def test_push_uploads_the_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(HfApi, "create_repo", lambda _, repo, **__: calls.append(repo))
    monkeypatch.setattr(HfApi, "upload_folder", lambda _, **options: calls.append(options))
    out = tmp_path / "small"
    done = CliRunner().invoke(app, ["export", str(run), "--out", str(out), "--push", "me/small"])
    assert done.exit_code == 0, done.output
    assert calls == ["me/small", {"repo_id": "me/small", "folder_path": out}]
    assert 'load_trained("hub:me/small")' in (out / "README.md").read_text()


class Hub(BaseHTTPRequestHandler):
    """The answers that the Hub's client needs: a repository's files, and each of them."""

    def __init__(self, folder: Path, fetched: list[str], *rest: Any) -> None:
        self.folder, self.fetched = folder, fetched
        super().__init__(*rest)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, sha = self.path.split("?")[0], "a" * 40
        files = sorted(self.folder.iterdir())
        if path.startswith("/api/models/me/small/revision/"):
            names = [{"rfilename": file.name} for file in files]
            content = json.dumps({"id": "me/small", "sha": sha, "siblings": names}).encode()
        elif path.startswith("/api/models/me/small/tree/"):
            content = json.dumps([
                {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40}
                for f in files
            ]).encode()  # fmt: skip
        elif path.startswith("/me/small/resolve/"):
            self.fetched.append(path.rsplit("/", 1)[1])
            content = (self.folder / self.fetched[-1]).read_bytes()
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hash(content)}"')
        self.send_header("X-Repo-Commit", sha)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """No log."""


def test_a_network_comes_from_a_hub_without_code(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the Hub's own client, from a server on this machine."""
    served = export(run, tmp_path / "served")
    for name in ("modeling.py", "pytorch_model.bin"):
        shutil.copyfile(served / "README.md", served / name)
    fetched: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, served, fetched))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE",
        constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}",
    )  # fmt: skip
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    try:
        x = taser.data.load("digits").test.x[:8]
        assert torch.equal(load_trained("hub:me/small@main")(x), load_trained(run)(x))
        assert "model.safetensors" in fetched
        assert not {"modeling.py", "pytorch_model.bin"} & set(fetched)
        with pytest.raises(ValueError, match="hub:me/other could not be fetched from the Hub"):
            load_trained("hub:me/other")
        with pytest.raises(ValueError, match="could not be fetched"):
            load_trained("hub:a/b/c")
    finally:
        server.shutdown()
        server.server_close()
