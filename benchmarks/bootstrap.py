"""How sure a median is."""

import numpy as np


def interval(ratios) -> tuple[float, float]:
    """95% of the medians of samples drawn from the ratios with replacement lie between these."""
    samples = np.random.default_rng(0).choice(ratios, size=(10_000, len(ratios)))
    return tuple(np.percentile(np.median(samples, axis=1), [2.5, 97.5]))
