"""Damaged files of runs, recipes, data and weights end in one line that names the file."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import MLP, small

import taser
from taser.models._weights import read_weights
from taser.training import load_trained, read_recipe, train
from taser.training._run_folder import read_data_config, read_log

CONFIG = small(model=MLP)
HARM: dict[str, bytes] = {
    "empty": b"",
    "a list": b"[1, 2]",
    "a number": b"3",
    "text": b"hello\n",
    "integer keys": b"1: 2\n3: {4: 5}\n",
    "deep": b"[" * 100_000,
    "deep keys": b'{"a":' * 20_000,
    "no text": bytes(range(256)),
    "a huge header": b"\xff" * 7 + b"\0{}",
    "a long header": (2**40).to_bytes(8, "little") + b"{}",
    "a header that is a list": b"\2" + bytes(7) + b"[]",
    "aliases": b"a: &a [x, x]\n" + b"".join(b"b%d: [*a, *a, *a]\n" % k for k in range(30)),
    "a tag": b"!!python/object/apply:os.system [echo]\n",
    "a surrogate": b'{"name": "\\ud800"}',
    "infinite": b'{"name": Infinity, "step": 1e999, "kind": "train"}',
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    train(CONFIG, out)
    return out


def check(call: Callable[[], Any], path: Path) -> None:
    """Either it works, or it raises one line that names the file or its folder."""
    try:
        call()
    except (ValueError, RuntimeError, OSError) as error:
        said = str(error)
        assert str(path) in said or str(path.parent) in said, said
        assert "\n" not in said
        assert len(said) < 1000


READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": lambda path: read_data_config(path.parent),
    "recipe.yaml": read_recipe,
    "model.json": lambda path: load_trained(path.parent),
    "best.safetensors": lambda path: load_trained(path.parent),
    "log.jsonl": lambda path: read_log(path.parent),
    "weights.pt": read_weights,
    "data.npz": taser.data.load,
    "table.csv": lambda path: taser.data.load(path, target="y"),
    "table.parquet": lambda path: taser.data.load(path, target="y"),
    "images/a/1.png": lambda path: taser.data.load(path.parents[1]),
    "score.safetensors": lambda path: taser.scores.Denoiser.load(path),
}


@pytest.fixture
def whole(finished: Path, tmp_path: Path) -> Path:
    """A run's folder, with the other files in it."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.copy(out / "config.yaml", out / "recipe.yaml")
    rng = np.random.default_rng(0)
    np.savez(out / "data.npz", x=rng.random((30, 1, 4, 4)), y=np.arange(30) % 2)
    (out / "table.csv").write_text("a,y\n" + "1.5,0\n2.5,1\n" * 10)
    (out / "table.parquet").write_bytes(b"PAR1")
    torch.save({"w": torch.zeros(2)}, out / "weights.pt")
    shutil.copy(out / "best.safetensors", out / "score.safetensors")
    for name in (f"{label}/{number}" for label in "ab" for number in range(8)):
        (out / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(out / "images" / f"{name}.png")
    return out


@pytest.mark.parametrize("file", READERS)
@pytest.mark.parametrize("harm", HARM)
def test_changed_content_is_named(whole: Path, file: str, harm: str) -> None:
    (whole / file).write_bytes(HARM[harm])
    check(lambda: READERS[file](whole / file), whole / file)


@pytest.mark.parametrize("file", READERS)
def test_random_bytes_are_named(whole: Path, file: str) -> None:
    content, rng = (whole / file).read_bytes(), random.Random(file)
    for _ in range(20):
        cut = rng.randint(0, len(content)) if rng.random() < 0.3 else None
        changed = bytearray(content[:cut])
        for place in range(len(changed) and rng.randint(1, 4)):
            changed[rng.randrange(min(len(changed), 400 * (1 + place)))] = rng.randrange(256)
        (whole / file).write_bytes(changed)
        check(lambda: READERS[file](whole / file), whole / file)


@pytest.mark.parametrize("file", ["config.yaml", "log.jsonl", "checkpoints"])
@pytest.mark.parametrize("harm", HARM)
def test_resuming_with_damaged_files(whole: Path, file: str, harm: str) -> None:
    for path in (whole / file).rglob("*.*") if file == "checkpoints" else [whole / file]:
        path.write_bytes(HARM[harm])
    check(lambda: train(CONFIG, whole), whole / file)
