"""Which numbers are taken, without PyTorch, which the first chapter does not load."""

import math
from numbers import Real


def is_finite(value):
    """Whether it is a real number that a float64 can hold: not infinite, no NaN, no ``10**400``."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False
