"""The largest error of a compared quantity, and its limit."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The largest error of a quantity.

    Attributes:
        case: name of the computation.
        quantity: name of the compared result.
        error: largest error.
        limit: largest allowed error.
        count: number of compared values, ids or variables.
    """

    case: str
    quantity: str
    error: float
    limit: float
    count: int

    @property
    def holds(self):
        """Whether the error is within the limit. False for NaN, or if nothing was compared."""
        return self.count > 0 and self.error <= self.limit


def relative_error(actual, expected, rounding=0.0):
    """Returns the largest difference of two arrays, divided by the largest expected entry.

    If no expected entry is larger than `rounding`, the difference is not divided.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise ValueError(f"Expected shape {expected.shape}. Received: {actual.shape}.")
    largest = np.abs(expected).max()
    return float(np.abs(actual - expected).max() / (largest if largest > rounding else 1.0))
