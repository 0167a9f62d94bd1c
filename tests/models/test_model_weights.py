"""Weights from files of many kinds, and none that would run code."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from taser.models import load_weights, read_weights
from taser.models._weights import weights_hash


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "model_state_dict", "net"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".safetensors"])
def test_wrapped_weights_are_found(
    tmp_path: Path, prefix: str, wrapper: str | None, suffix: str
) -> None:
    one, other, path = network(), network(), tmp_path / f"weights{suffix}"
    state = prefixed(one.state_dict(), prefix)
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"epoch": 3, wrapper: state} if wrapper else state, path)
    load_weights(other, path)
    x = torch.rand(5, 3)
    assert torch.equal(one(x), other(x))


def test_a_prefix_that_is_the_model_s_own_stays(tmp_path: Path) -> None:
    one, other = (nn.ModuleDict({"model": nn.Linear(2, 2)}) for _ in range(2))
    save_file(one.state_dict(), tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    assert torch.equal(one["model"].weight, other["model"].weight)  # type: ignore[arg-type]


def test_counts_of_batches_may_be_missing(tmp_path: Path) -> None:
    """As in weights of PyTorch before 0.4.1."""
    state = network().state_dict()
    del state["1.num_batches_tracked"]
    save_file(state, tmp_path / "w.safetensors")
    load_weights(network(), tmp_path / "w.safetensors")


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = network().state_dict()
    del state["0.bias"]
    state["3.weight"] = torch.zeros(7, 4)
    state |= {f"extra{i}": torch.zeros(1) for i in range(5)}
    torch.save(state, tmp_path / "w.pt")
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError) as caught:
        load_weights(model, tmp_path / "w.pt")
    message = str(caught.value)
    assert "1 missing: 0.bias;" in message
    assert "5 unexpected: extra0, extra1, extra2, …" in message
    assert "1 of another shape: 3.weight ((7, 4) in the file, (2, 4) in the model)" in message
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


class Trap:
    """Code that a pickle may run on loading: here it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_strangers_are_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": Trap(tmp_path / "sprung")}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"run code .* best as \.safetensors"):
        read_weights(tmp_path / "w.pt")
    assert not (tmp_path / "sprung").exists()
    torch.load(tmp_path / "w.pt", weights_only=False)
    assert (tmp_path / "sprung").exists()  # so the trap was one
    torch.save(network(), tmp_path / "w.pt")
    with pytest.raises(ValueError, match="pickled model"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "should hold a state dict; got int"),
        ({}, "should hold a state dict; got dict"),
        ({"state_dict": {}}, "should hold a state dict; got dict"),
        ({"epoch": 3, "weights": {"w": torch.zeros(1)}}, "no named tensors are epoch, weights"),
        ({0: torch.zeros(1)}, "no named tensors are 0"),
        ([torch.zeros(1)], "should hold a state dict; got list"),
    ],
)
def test_what_holds_no_weights_is_named(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / "w.pt")


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    """Whatever byte of the archive is changed."""
    torch.save(network().state_dict(), tmp_path / "w.pt")
    content = (tmp_path / "w.pt").read_bytes()
    draw = random.Random(0)
    for _ in range(100):
        place = draw.randrange(len(content) // 2)
        damaged = content[:place] + draw.randbytes(3) + content[place + 3 :]
        (tmp_path / "w.pt").write_bytes(damaged)
        with suppress(ValueError):  # or only numbers were changed
            read_weights(tmp_path / "w.pt")


def test_weights_that_contain_themselves_end_in_an_error(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["model"] = loop
    torch.save(loop, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="no named tensors are model"):
        read_weights(tmp_path / "w.pt")


def test_files_that_are_not_weights(tmp_path: Path) -> None:
    for name, message in {
        "w.safetensors": "not a safetensors file",
        "w.pt": "cannot be read as weights alone",
        "w.npz": "should end in .safetensors, .pt",
    }.items():
        (tmp_path / name).write_bytes(b"\x00" * 100)
        with pytest.raises(ValueError, match=message):
            read_weights(tmp_path / name)
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ValueError, match=message):
            read_weights(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no weights at"):
        read_weights(tmp_path / "none.pt")


def test_the_hash_of_weights_stays_what_it_was() -> None:
    """Earlier evaluations are identified by it."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    expected = "c76cc2aa352af3f042f45de5e7c77f25846fb1b7ef09050b91bddf577e56df4c"
    assert weights_hash(model) == expected


def test_weights_that_numpy_has_no_type_for_have_a_hash() -> None:
    model = nn.Linear(2, 1).to(torch.bfloat16)
    before = weights_hash(model)
    with torch.no_grad():
        model.bias.add_(1)
    assert weights_hash(model) != before


def test_the_hash_of_weights_is_of_their_values() -> None:
    """Independent of memory layout, and with scalars beside them."""
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))
    before = weights_hash(model)
    assert weights_hash(model.to(memory_format=torch.channels_last)) == before  # type: ignore[call-overload]
