"""Plots, where there is something to draw them with."""

import sys


def pyplot():
    """`matplotlib.pyplot`, which draws into files; None, saying so, where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("No plot: matplotlib is missing (pip install '.[plots]').", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
