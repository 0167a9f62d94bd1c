"""Staying near the model that fine-tuning began with."""

from torch import Tensor

from taser.probes.precision import full_precision

from .objective import kl_divergence


def teacher_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """mean_i KL(f_θ0(x_i) ‖ f_θ(x_i)), a scalar, of two sets of logits (B, C); no temperature."""
    return kl_divergence(full_precision(teacher.detach()), full_precision(student)).mean()
