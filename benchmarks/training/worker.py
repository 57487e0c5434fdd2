"""Trains one system of the training benchmark in its own process.

Started by `benchmarks.training` with settings as JSON. A message `[first, end]` trains on the
batches from `first` to `end - 1`. The result is their losses.

The module of a system, `KIND_step`, is imported only in its worker. It defines `make(settings)`,
which returns `prepare(batches)`, which returns the function that is timed.
"""

import importlib

import numpy as np

from benchmarks.workers import answer_all


def start(settings):
    """Returns the function that answers messages."""
    module = importlib.import_module(f"benchmarks.training.{settings['kind']}_step")
    prepare, arrays = module.make(settings), np.load(settings["batches"])
    return lambda message: prepare(
        [(arrays[f"inputs_{i}"], arrays[f"targets_{i}"]) for i in range(*message)]
    )


if __name__ == "__main__":
    answer_all(start)
