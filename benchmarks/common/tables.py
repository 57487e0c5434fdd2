"""Tables as Markdown and CSV."""

import csv
from pathlib import Path


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
