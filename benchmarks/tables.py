"""Tables, as the benchmarks print and write them."""

import csv


def print_header(columns):
    """Prints the first two lines of a Markdown table."""
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))


def print_cells(cells):
    """Prints a line of the table, shown at once."""
    print("| " + " | ".join(cells) + " |", flush=True)


def write_csv(path, columns, rows):
    """Writes rows, dicts by column, as a CSV file with a header."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
