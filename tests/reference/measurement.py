"""One compared quantity: its largest error and how large it may be."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The largest error of a quantity.

    Attributes:
        case: name of the computation.
        quantity: which result of it.
        error: the largest error found.
        limit: the largest error allowed.
        count: how many numbers, ids or variables were compared.
    """

    case: str
    quantity: str
    error: float
    limit: float
    count: int

    @property
    def holds(self):
        """Whether the error is within the limit; a nan is not, nor is a comparison of nothing."""
        return self.count > 0 and self.error <= self.limit


def relative_error(actual, expected, rounding=0.0):
    """The largest difference of two arrays, over the largest entry expected.

    Where nothing above `rounding` is expected, the difference itself.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise ValueError(f"Expected shape {expected.shape}. Received: {actual.shape}.")
    largest = np.abs(expected).max()
    return float(np.abs(actual - expected).max() / (largest if largest > rounding else 1.0))
