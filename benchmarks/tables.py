"""Markdown tables, and medians with bootstrapped confidence intervals."""

import numpy as np


def print_header(columns):
    """Prints the first two lines of a Markdown table."""
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))


def print_cells(cells):
    """Prints one line of a Markdown table and flushes the output."""
    print("| " + " | ".join(cells) + " |", flush=True)


def format_median(values, digits=2) -> str:
    """Formats the median and its bootstrapped 95 % interval, for example "1.02 (1.01 – 1.03)"."""
    samples = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
    numbers = np.median(values), *np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    median, low, high = (f"{number:.{digits}f}" for number in numbers)
    return f"{median} ({low} – {high})"
