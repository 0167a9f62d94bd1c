"""Common corruptions of pictures, after CIFAR-10-C (Hendrycks and Dietterich, 2019).

The levels of severity 1 … 5 are CIFAR-10-C's own; where our form is simpler than theirs, they are
chosen to be about as strong, and the function says so. Pixels are not rounded to bytes.
"""

from .blur import defocus_blur, gaussian_blur, motion_blur
from .corruption import Corruption
from .digital import jpeg, pixelate
from .light import brightness, contrast, saturate
from .noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from .weather import elastic, fog

CORRUPTIONS = (
    Corruption("gaussian noise", gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), "noise"),
    Corruption("shot noise", shot_noise, (500, 250, 100, 75, 50), "noise"),
    Corruption("impulse noise", impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), "noise"),
    Corruption("speckle noise", speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20), "noise"),
    Corruption("gaussian blur", gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0), "blur"),
    Corruption("defocus blur", defocus_blur, (0.55, 0.69, 0.93, 1.0, 1.6), "blur"),
    Corruption("motion blur", motion_blur, (1.0, 1.5, 2.0, 2.0, 2.5), "blur"),
    Corruption("fog", fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)), "light"),
    Corruption("brightness", brightness, (0.05, 0.10, 0.15, 0.20, 0.30), "light"),
    Corruption("contrast", contrast, (0.75, 0.50, 0.40, 0.30, 0.15), "light"),
    Corruption("saturate", saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
               "light", needs_colour=True),
    Corruption("elastic", elastic, (0.4, 0.6, 0.8, 1.0, 1.2), "digital"),
    Corruption("pixelate", pixelate, (0.95, 0.90, 0.85, 0.75, 0.65), "digital"),
    Corruption("jpeg", jpeg, (80, 65, 58, 50, 40), "digital"),
)  # fmt: skip
"""Every corruption, with what its severities mean: one function and one line add another."""

__all__ = [
    "CORRUPTIONS", "Corruption", "brightness", "contrast", "defocus_blur", "elastic", "fog",
    "gaussian_blur", "gaussian_noise", "impulse_noise", "jpeg", "motion_blur", "pixelate",
    "saturate", "shot_noise", "speckle_noise",
]  # fmt: skip
