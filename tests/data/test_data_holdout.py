import hashlib

import numpy as np
import pytest

from taser.data._load import hold_out


def test_the_choice_never_changes() -> None:
    """A frozen value: another choice would mix validation examples into old models' training."""
    held = np.flatnonzero(hold_out(50_000, 0.1, seed=(0, 1), labels=np.arange(50_000) % 10))
    assert held[:5].tolist() == [4, 7, 10, 18, 35]
    assert hashlib.sha256(held.astype("<i8").tobytes()).hexdigest()[:16] == "49b90d9ec0ed9f2f"


def test_every_class_keeps_its_share() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    held = hold_out(160, 0.2, seed=3, labels=labels)
    assert np.bincount(labels[held]).tolist() == [20, 10, 2]


def test_seeds_and_fractions_matter() -> None:
    assert (hold_out(100, 0.1, seed=0) != hold_out(100, 0.1, seed=1)).any()
    assert hold_out(100, 0.25, seed=0).sum() == 25


def test_choice_is_uniform() -> None:
    """Each of 20 places is held out in about 30 % of 2,000 seeds: within five standard errors."""
    counts = sum(hold_out(20, 0.3, seed=seed).astype(int) for seed in range(2000))
    error = 5 * np.sqrt(2000 * 0.3 * 0.7)
    assert (abs(counts - 600) < error).all()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fraction_outside_the_interval_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"strictly in \(0, 1\)"):
        hold_out(10, fraction, seed=0)


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="the data set has 3 examples, too few"):
        hold_out(3, 0.1, seed=0)
    with pytest.raises(ValueError, match="birds has 4 examples in these classes"):
        hold_out(4, 0.1, seed=0, labels=np.arange(4), name="birds")
