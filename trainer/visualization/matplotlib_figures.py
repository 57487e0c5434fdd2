"""How plots look and are saved. All that is drawn needs matplotlib, which is imported here and nowhere sooner than it is needed."""

import importlib.util
from pathlib import Path

from trainer import atomic_files


def has_matplotlib() -> bool:
    """Whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def check_matplotlib():
    """Checks that matplotlib is installed.

    Raises:
        ValueError: where it isn't, with the command that installs it.
    """
    if not has_matplotlib():
        raise ValueError(
            "Expected matplotlib, which draws what --plots asks for. Received: none. Run `pip install '.[plots]'`."
        )


def make_figure(rows: int, columns: int):
    """A figure with a grid of axes.

    Returns:
        The figure, and an array `[rows, columns]` of its axes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * columns, 3.6 * rows), dpi=150, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure, axes


def save_figure(figure, path: Path) -> Path:
    """Writes a figure as a PNG, whole or not at all, and returns its path."""
    with atomic_files.whole_file(path) as aside:
        figure.savefig(aside)
    return path
