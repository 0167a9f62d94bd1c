"""Classifiers that others trained, with published robustness, to test an evaluation on.

    taser evaluate --model experiments/known_models.py:mnist_lenet5_robust --data mnist -n 100

Weights are fetched once, into torch.hub's folder, and checked: those of LeNet-5 from the archive of
advertorch, by pip, those of ResNet-18 from the wheel of pyautoattack, which is installed.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser.models import load_weights

ADVERTORCH = (
    "advertorch==0.2.3 "
    "--hash=sha256:ca92a14b0521ae0f9bfa8100d37e47cb741ede1f1411fbaf9182ddebc7062dce\n"
)


class LeNet5(nn.Module):
    """The network of advertorch's MNIST examples: (B, 1, 28, 28) in [0, 1] → (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.linear1 = nn.Linear(7 * 7 * 64, 200)
        self.linear2 = nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        return self.linear2(F.relu(self.linear1(h.flatten(1))))


def mnist_lenet5() -> nn.Module:
    """LeNet-5, trained as usual."""
    sha256 = "551a11267982991fb0c9f74e9094de19e54b51455eff9bd1c19c77a69d85156a"
    return load(LeNet5(), "mnist_lenet5_clntrained.pt", from_archive, sha256)


def mnist_lenet5_robust() -> nn.Module:
    """LeNet-5, adversarially trained for ℓ∞ 0.3: 98.0 % clean, 89 % under AutoAttack (n = 100)."""
    sha256 = "b89abfcfe8b33235fe8f8e964188d82a97c56a12ffe25132eaba197e40ac7658"
    return load(LeNet5(), "mnist_lenet5_advtrained.pt", from_archive, sha256)


def cifar10_resnet18() -> nn.Module:
    """ResNet-18, trained as usual: 94.2 % clean."""
    from pyautoattack.examples.resnet import ResNet18

    sha256 = "399f52da9f914c323fa5a6096d60f460a3449a59b64a6405200c1e629f8425a7"
    return load(ResNet18(), "model_test.pt", from_wheel, sha256)


def load(model: nn.Module, file: str, fetch: Callable[[str], bytes], sha256: str) -> nn.Module:
    """The model in eval mode with the weights of `file`, which are fetched if missing."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / file
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        content = fetch(file)
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            raise RuntimeError(f"{file} should have the sha256 {sha256}; got {found}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    load_weights(model, path)
    return model.eval()


def from_wheel(file: str) -> bytes:
    """A file of the installed package pyautoattack."""
    return (files("pyautoattack") / "examples" / file).read_bytes()


def from_archive(file: str) -> bytes:
    """A file of advertorch's archive, fetched by pip, which checks its hash before opening it."""
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:")
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "requirements.txt")
        wanted.write_text(ADVERTORCH)
        subprocess.run([*pip, "--require-hashes", "-r", wanted, "-d", folder], check=True)
        with tarfile.open(next(Path(folder).glob("advertorch-*.tar.gz"))) as archive:
            member = next(m for m in archive if m.isfile() and Path(m.name).name == file)
            content = archive.extractfile(member)
            assert content is not None
            return content.read()
