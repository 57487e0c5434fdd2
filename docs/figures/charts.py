"""The common style of the figures: SVG that is readable on a light and on a dark page."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

FIGURES = Path(__file__).parent
MEASUREMENTS = FIGURES.parent / "dev" / "measurements"

# Text and lines have a contrast of about 4 to 1 with white and with near-black backgrounds.
TEXT = "#7d8590"
GRID = "#7d859044"
BLUE, ORANGE, GREEN = "#3b82d6", "#d9741a", "#2f9e6e"

matplotlib.rcParams.update(
    {
        "axes.edgecolor": TEXT,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": TEXT,
        "axes.prop_cycle": matplotlib.cycler(color=[BLUE, ORANGE, GREEN]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": TEXT,
        "axes.titlesize": 11,
        "font.family": "sans-serif",
        "font.size": 10,
        "grid.color": GRID,
        "legend.frameon": False,
        "legend.labelcolor": TEXT,
        "savefig.transparent": True,
        "svg.fonttype": "none",
        # Fixed, so that the same data gives the same file.
        "svg.hashsalt": "t2t_relpos",
        "text.color": TEXT,
        "xtick.color": TEXT,
        "ytick.color": TEXT,
    }
)


def read_measurements(name: str, **conditions) -> list[dict]:
    """Returns the rows of a CSV file in which each column has the given value."""
    with open(MEASUREMENTS / name, newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if all(row[column] == str(value) for column, value in conditions.items())
        ]


def draw_ratios(axis, title: str, rows: list[dict]):
    """Plots the ratio over length with its interval, one line for each direction."""
    axis.axhline(1, color=TEXT, linewidth=1.5, linestyle=":")
    for direction in ("bidirectional", "causal"):
        points = [row for row in rows if row["direction"] == direction]
        points.sort(key=lambda row: int(row["length"]))
        lengths = [int(row["length"]) for row in points]
        axis.plot(lengths, [float(row["ratio"]) for row in points], marker="o", label=direction)
        low, high = ([float(row[bound]) for row in points] for bound in ("low", "high"))
        axis.fill_between(lengths, low, high, alpha=0.25, linewidth=0)
    ticks = sorted({int(row["length"]) for row in rows})
    axis.set(title=title, xlabel="positions", xscale="log")
    axis.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks], rotation=45)
    axis.set_xticks([], minor=True)


def save(figure, name: str):
    """Writes `docs/figures/NAME.svg`, without a date."""
    figure.tight_layout()
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
