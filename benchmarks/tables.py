"""Tables as Markdown and CSV, and medians with bootstrapped confidence intervals."""

import csv
from pathlib import Path

import numpy as np


def print_header(columns):
    """Prints the first two lines of a Markdown table."""
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))


def print_cells(cells):
    """Prints one line of a Markdown table and flushes the output."""
    print("| " + " | ".join(cells) + " |", flush=True)


def write_csv(path, columns, rows):
    """Writes rows, dicts by column, as a CSV file with a header. Creates the folder if needed."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def median_and_interval(values) -> tuple[float, float, float]:
    """Returns the median, and both ends of its bootstrapped 95 % confidence interval."""
    samples = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
    return np.median(values), *np.percentile(np.median(samples, axis=1), [2.5, 97.5])


def format_interval(median, low, high, digits=2) -> str:
    """Formats the values of `median_and_interval`, for example "1.02 (1.01 – 1.03)"."""
    return f"{median:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"
