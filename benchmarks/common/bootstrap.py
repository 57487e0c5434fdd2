"""Bootstrap confidence intervals."""

import numpy as np


def median_and_interval(values) -> tuple[float, float, float]:
    """Returns the median, and both ends of its bootstrapped 95 % confidence interval."""
    samples = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
    return np.median(values), *np.percentile(np.median(samples, axis=1), [2.5, 97.5])


def format_interval(median, low, high, digits=2) -> str:
    """Formats the values of `median_and_interval`, for example "1.02 (1.01 – 1.03)"."""
    return f"{median:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"
