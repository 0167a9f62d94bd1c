"""Published classifiers with known robustness, to test an evaluation on."""

import hashlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from taser._files import write_atomically
from taser.data._archives import read_members
from taser.data._cache import cache_root
from taser.data._sources import FetchError, only_file, run_client
from taser.models import load_weights

ADVERTORCH = (
    "advertorch==0.2.3 "
    "--hash=sha256:ca92a14b0521ae0f9bfa8100d37e47cb741ede1f1411fbaf9182ddebc7062dce"
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
        """(B, 1, 28, 28) → (B, 10)."""
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        return self.linear2(F.relu(self.linear1(h.flatten(1))))


def _resnet18() -> nn.Module:
    from pyautoattack.examples.resnet import ResNet18

    return ResNet18()


@dataclass(frozen=True)
class KnownModel:
    """A network, its data set, the file of its weights, how to fetch that, and its sha256."""

    name: str
    data: str
    summary: str
    build: Callable[[], nn.Module]
    file: str
    fetch: Callable[[str], bytes]
    sha256: str

    def load(self, root: Path | str | None = None) -> nn.Module:
        """The model in eval mode; its weights are fetched once and checked."""
        path = cache_root(root) / "models" / self.file
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != self.sha256:
            content = self.fetch(self.file)
            found = hashlib.sha256(content).hexdigest()
            if found != self.sha256:
                raise FetchError(f"{self.file} should have another sha256 than {found}")
            write_atomically(path, content)
        model = self.build()
        load_weights(model, path)
        return model.eval()


def _of_package(file: str) -> bytes:
    """From the wheel of pyautoattack, which is installed."""
    return (files("pyautoattack") / "examples" / file).read_bytes()


def _of_sdist(file: str) -> bytes:
    """From advertorch's archive, fetched by pip, which checks its hash before opening it."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "requirements.txt").write_text(ADVERTORCH + "\n")
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        run_client([*pip, "--require-hashes", "--requirement", "requirements.txt"], work)
        found = read_members(only_file(work, "advertorch-*.tar.gz"), [file])
    if file not in found:
        raise FetchError(f"the archive of advertorch holds no {file}")
    return found[file]


KNOWN_MODELS = (
    KnownModel(
        "mnist-lenet5", "mnist", "LeNet-5, trained as usual", LeNet5,
        "mnist_lenet5_clntrained.pt", _of_sdist,
        "551a11267982991fb0c9f74e9094de19e54b51455eff9bd1c19c77a69d85156a",
    ),
    KnownModel(
        "mnist-lenet5-robust", "mnist", "LeNet-5, adversarially trained for ℓ∞ 0.3", LeNet5,
        "mnist_lenet5_advtrained.pt", _of_sdist,
        "b89abfcfe8b33235fe8f8e964188d82a97c56a12ffe25132eaba197e40ac7658",
    ),
    KnownModel(
        "cifar10-resnet18", "cifar10", "ResNet-18, trained as usual, 94.2 % clean", _resnet18,
        "model_test.pt", _of_package,
        "399f52da9f914c323fa5a6096d60f460a3449a59b64a6405200c1e629f8425a7",
    ),
)  # fmt: skip


def known_model(name: str, root: Path | str | None = None) -> nn.Module:
    """The published model of this name, with or without "known:" before it."""
    models = {model.name: model for model in KNOWN_MODELS}
    name = name.removeprefix("known:")
    if name not in models:
        raise ValueError(f"a known model should be one of {', '.join(models)}; got {name!r}")
    return models[name].load(root)
