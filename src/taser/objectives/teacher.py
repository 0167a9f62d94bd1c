"""Staying near the model that fine-tuning began with."""

from torch import Tensor

from taser.attacks import kl_divergence


def teacher_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """mean_i KL(f_θ0(x_i) ‖ f_θ(x_i)), a scalar, of two sets of logits (B, C); no temperature."""
    return kl_divergence(teacher.detach(), student).mean()
