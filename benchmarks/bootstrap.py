"""How sure a median is."""

import numpy as np


def median_and_interval(values) -> tuple[float, float, float]:
    """The median, and between which 95% of the medians of samples lie that are drawn from the values with replacement."""
    samples = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
    return np.median(values), *np.percentile(np.median(samples, axis=1), [2.5, 97.5])
