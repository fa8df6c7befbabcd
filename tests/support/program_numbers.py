"""A module with a generator of its own, which others call."""

import numpy as np

_GENERATOR = np.random.default_rng(20)


def next_number() -> float:
    """Return the next number."""
    return float(_GENERATOR.normal())
