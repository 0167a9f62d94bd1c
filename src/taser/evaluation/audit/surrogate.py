"""A quick undefended model of the same task, to transfer attacks from."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser.models import MLP, SmallCNN
from taser.progress import Progress
from taser.stein.guards import untouched_randomness

BATCH = 128


def undefended(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    epochs: int = 5,
    width: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """A small network trained on x, (N, *), and y, (N,), with cross-entropy and nothing else.

    A convolutional one for images, a perceptron for vectors; in evaluation mode.
    """
    shape = tuple(x.shape[1:])
    with untouched_randomness(x.device):
        torch.manual_seed(seed)
        network: nn.Module = (
            SmallCNN(shape, classes, width) if x.ndim == 4 else MLP(shape, classes, 8 * width)
        )
        network = network.to(x.device).train()
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        for epoch in range(epochs):
            if progress:
                progress(epoch, epochs, "training a surrogate")
            for rows in torch.randperm(len(x)).to(x.device).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(network(x[rows]), y[rows]).backward()
                optimiser.step()
    return network.eval()
