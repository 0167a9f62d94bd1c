"""What the toy regression's penalty does to an ideal learner."""

import math


def theory(weight: float) -> float:
    """The error in distribution of the exact minimiser of E(f − sin x)² + λ E(L f)².

    Hermite polynomials are eigenfunctions, L He_n = −n He_n, so each coefficient of sin shrinks by
    1/(1 + λn²); sin has energy e⁻¹/n! in each odd n, which leaves Σ e⁻¹/n! · (λn²/(1 + λn²))².

    >>> round(theory(0.1), 4)
    0.0184
    """
    return sum(
        math.exp(-1) / math.factorial(n) * (weight * n * n / (1 + weight * n * n)) ** 2
        for n in range(1, 40, 2)
    )
