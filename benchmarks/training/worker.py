"""Trains one system of the training benchmark in its own process.

Started by `benchmarks.training` with settings as JSON. A message `[first, end]` trains on the
batches from `first` to `end - 1`. The answer has "seconds", "losses" and the peak memory in
"megabytes".

The module of a system, `KIND_step`, is imported only in its worker, because systems have their own
environments. It defines `make(settings)`, which returns `prepare(batches)`, which returns the
function that is timed.
"""

import importlib
import math
import time

import numpy as np

from benchmarks import memory
from benchmarks.workers import answer_all


def make_reply(settings):
    """Returns the function that answers messages."""
    module = importlib.import_module(f"benchmarks.training.{settings['kind']}_step")
    prepare, arrays = module.make(settings), np.load(settings["batches"])

    def reply(message):
        train = prepare([(arrays[f"inputs_{i}"], arrays[f"targets_{i}"]) for i in range(*message)])
        memory.reset_peak()
        start = time.perf_counter()
        result = train()
        result |= {"seconds": time.perf_counter() - start, "megabytes": memory.peak()}
        if not all(map(math.isfinite, result["losses"])):
            raise FloatingPointError(f"All losses must be finite. Received: {result['losses']}.")
        return result

    return reply


if __name__ == "__main__":
    answer_all(make_reply)
