"""matplotlib as an optional dependency."""

import sys


def import_pyplot():
    """Returns `matplotlib.pyplot`; prints a warning and returns None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("No plot: matplotlib is not installed (pip install '.[plots]').", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
