"""A cache gives back the scores it was made of, and refuses to give anything else."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from taser.scores import DensityScore, Gaussian, from_edm, read_cache, write_cache
from taser.scores._score_cache import StaleCache, model_hash, weights_hash


class Function(torch.nn.Module):
    """A function as a network, with a weight by which a cache identifies it."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.forward = function


def smooth(mean: float = 0.0) -> DensityScore:
    return Gaussian(torch.full((2, 3), mean)).at(sigma=0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x = torch.randn(10, 2, 3, generator=torch.Generator().manual_seed(0))
    write_cache(tmp_path, smooth(), x, data="abc", batch=4)
    return tmp_path


def test_it_gives_back_the_scores_in_half_precision(folder: Path) -> None:
    score = smooth()
    x = torch.randn(10, 2, 3, generator=torch.Generator().manual_seed(0))
    scores = read_cache(folder, data="abc", model=model_hash(score), sigma=0.1)
    assert scores.dtype == np.float16
    torch.testing.assert_close(torch.tensor(scores).float(), score(x), rtol=1e-3, atol=1e-3)


def test_the_hash_of_weights_stays_what_it_was() -> None:
    """Earlier caches and evaluations are identified by it."""
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    expected = "c76cc2aa352af3f042f45de5e7c77f25846fb1b7ef09050b91bddf577e56df4c"
    assert weights_hash(model) == expected


def test_weights_that_numpy_has_no_type_for_have_a_hash() -> None:
    model = torch.nn.Linear(2, 1).to(torch.bfloat16)
    before = weights_hash(model)
    with torch.no_grad():
        model.bias.add_(1)
    assert weights_hash(model) != before


def test_the_hash_of_weights_is_of_their_values() -> None:
    """Independent of memory layout, and with scalars beside them."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))
    before = weights_hash(model)
    assert weights_hash(model.to(memory_format=torch.channels_last)) == before  # type: ignore[call-overload]


def test_another_model_data_or_level_is_stale(folder: Path) -> None:
    other = model_hash(smooth(1.0))
    for entry in ({"data": "abd"}, {"model": other}, {"sigma": 0.2}):
        with pytest.raises(StaleCache, match="make a new one"):
            read_cache(folder, **entry)


def test_damage_is_seen(folder: Path) -> None:
    file = folder / "scores.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(StaleCache, match="damaged"):
        read_cache(folder)
    file.write_bytes(content[:-20])
    with pytest.raises(StaleCache, match="cannot be read"):
        read_cache(folder, verify=False)
    for damaged in (b"", content[:20], content[:8]):
        file.write_bytes(damaged)
        with pytest.raises(StaleCache, match="cannot be read"):
            read_cache(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(StaleCache, match="no whole score cache"):
        read_cache(folder)


def test_an_interrupted_write_leaves_no_cache(folder: Path) -> None:
    def fails(_x: torch.Tensor, _sigma: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    folder = folder / "new"
    with pytest.raises(RuntimeError, match="memory"):
        write_cache(folder, from_edm(Function(fails), 0.1), torch.zeros(4, 2), data="")
    with pytest.raises(StaleCache, match="no whole"):
        read_cache(folder)


@pytest.mark.parametrize("file", ["scores.npy", "manifest.json", "thesis.txt"])
def test_nothing_is_written_over(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty: give another folder"):
        write_cache(tmp_path, smooth(), torch.zeros(4, 2, 3), data="")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "should hold a JSON object"), ("{", "is not JSON"), ("{}", "shape is missing")],
)
def test_a_damaged_manifest_is_named(folder: Path, text: str, message: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=rf"manifest\.json.* {message}"):
        read_cache(folder)


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(OSError, match="make room"):
        write_cache(tmp_path, smooth(), torch.ones(4, 2, 3), data="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factor", [1e6, float("nan")])
def test_scores_too_large_for_half_precision_are_refused(tmp_path: Path, factor: float) -> None:
    def large(x: torch.Tensor, _sigma: torch.Tensor) -> torch.Tensor:
        return factor * x

    with pytest.raises(ValueError, match="half precision"):
        write_cache(tmp_path, from_edm(Function(large), 0.1), torch.ones(4, 2), data="")
