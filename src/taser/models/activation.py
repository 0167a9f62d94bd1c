"""Activations by name."""

from collections.abc import Callable
from functools import partial

from torch import nn

from taser.nearest import unknown

Factory = Callable[[], nn.Module]
Activation = str | Factory
"""A name, or whatever makes the layer when it is called: "silu" or `nn.SiLU`."""

SOFTPLUS_BETA = 10.0  # near ReLU, as in smooth adversarial training (Xie et al., 2020)

FACTORIES: dict[str, Factory] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "softplus": partial(nn.Softplus, beta=SOFTPLUS_BETA),
}


def factory(activation: Activation) -> Factory:
    """What makes the layers of an activation.

    A ReLU network is linear almost everywhere, so the Laplacian of the Stein residual vanishes
    on it; "silu" and "softplus" (log(1 + e^{βx})/β with β = 10) have second derivatives.

    >>> factory("silu")(), factory("softplus")()
    (SiLU(), Softplus(beta=10.0, threshold=20.0))
    """
    if isinstance(activation, str):
        if activation.lower() not in FACTORIES:
            raise unknown("activation", activation, FACTORIES)
        return FACTORIES[activation.lower()]
    if isinstance(activation, nn.Module) or not callable(activation):
        raise ValueError(
            "activation should be a name or what makes the layer, such as nn.SiLU, for each place "
            f"gets its own; got {activation!r}"
        )
    return activation
