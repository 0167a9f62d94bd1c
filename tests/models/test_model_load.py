"""Models by name, module or file, checked before anyone relies on them."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from taser.models import build, load_model

SOURCE = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Config:
    bias: bool = True

number = 3

def linear(classes=4, *, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes, bias=Config(bias).bias), nn.Dropout())

def squeezed():
    return nn.Sequential(nn.Linear(12, 1), nn.Flatten(0))

def double():
    return nn.Linear(12, 4).double()

class Pair(nn.Module):
    def forward(self, x):
        return x, x

def text():
    return "no model"

made = nn.Linear(12, 4)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "linear.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_built_in_name_with_its_weights(tmp_path: Path) -> None:
    shape = (1, 8, 8)
    one = build("cnn", classes=3, shape=shape, width=4, mean=(0.3,), std=(0.4,)).eval()
    save_file(one.state_dict(), tmp_path / "w.safetensors")
    other = load_model("cnn", tmp_path / "w.safetensors", classes=3, shape=shape, width=4)
    assert not other.training
    x = torch.rand(2, *shape)
    assert torch.equal(one(x), other(x))


def test_a_file_is_imported_under_a_private_name(file: str) -> None:
    before = set(sys.modules)
    model = load_model(f"{file}:linear", classes=4, shape=(3, 2, 2), bias=False)
    assert not model.training
    assert model[1].bias is None
    new = set(sys.modules) - before
    assert len(new) == 1
    assert new.pop().startswith("_taser_file_linear_")


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('broken')")
    before = set(sys.modules)
    with pytest.raises(RuntimeError, match="broken"):
        load_model(f"{tmp_path}/broken.py:make", classes=2, shape=(2,))
    assert set(sys.modules) == before


def test_a_module_s_callable(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("torch.nn:Linear", classes=3, shape=(5,), in_features=5, out_features=3)
    assert isinstance(model, nn.Linear)
    monkeypatch.syspath_prepend(Path(file).parent)
    (Path(file).parent / "needy.py").write_text("import not_installed_anywhere")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_model("needy:make", classes=3, shape=(5,))


def test_regression_gives_one_number_in_either_shape(file: str) -> None:
    for classes in (None, 1):
        load_model(f"{file}:squeezed", classes=classes, shape=(12,))
        load_model("mlp", classes=classes, shape=(12,))
    load_model(f"{file}:double", classes=4, shape=(12,))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("resnet81", {}, "did you mean 'resnet18'"),
        ("mlp", {"dept": 3}, "did you mean 'depth'"),
        ("FILE", {}, r"which callable .*linear\.py:callable"),
        ("FILE:", {}, "callable' is needed"),
        (":linear", {}, "callable' is needed"),
        ("FILE:liner", {}, "did you mean 'linear'"),
        ("FILE:number", {}, "should be callable; it is of type int"),
        ("FILE:made", {}, "is an nn.Module already; name a function that returns one"),
        ("FILE:text", {}, "should return an nn.Module; got str"),
        ("FILE:linear", {"depth": 3}, "cannot be called with depth: .*unexpected"),
        ("torch.nn:Linear", {}, "cannot be called with no options: .*in_features"),
        ("no.such.module:make", {}, "no module 'no.such.module'.*path/to/file.py"),
        ("torch.no_such:make", {}, "no module 'torch.no_such'"),
        ("FILE:linear", {"classes": 5}, r"should give \(2, 5\) .*got \(2, 4\)"),
        ("FILE:linear", {"classes": None}, r"should give \(2, 1\) or \(2,\) .*got \(2, 4\)"),
        ("FILE:Pair", {}, "got tuple"),
        (
            "FILE:linear",
            {"shape": (11,)},
            r"does not take the inputs of these data \(data.name\), of shape \(11,\)",
        ),
    ],
)
def test_errors_name_the_fault(file: str, spec: str, options: dict, message: str) -> None:
    arguments = {"classes": 4, "shape": (12,), **options}
    with pytest.raises(ValueError, match=message):
        load_model(spec.replace("FILE", file), **arguments)


def test_weights_of_a_run_with_another_activation(tmp_path: Path) -> None:
    """Which no shape reveals."""
    network = {"classes": 3, "shape": (4,), "width": 8}
    save_file(
        load_model("mlp", activation="silu", **network).state_dict(), tmp_path / "w.safetensors"
    )
    (tmp_path / "model.json").write_text('{"name": "mlp", "options": {"activation": "silu"}}')
    with pytest.raises(ValueError, match=r"activation=silu, not relu: name the run's folder"):
        load_model("mlp", tmp_path / "w.safetensors", **network)
    load_model("mlp", tmp_path / "w.safetensors", activation="silu", **network)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file at"):
        load_model(f"{tmp_path}/none.py:make", classes=2, shape=(2,))
