"""Trains one system of the training benchmark in its own process.

Started by `benchmarks.training` with settings as JSON. A message `[first, end]` trains on the
batches from `first` to `end - 1`. The answer has "seconds", "losses" and the peak memory in
"megabytes".

The module of a system is imported only in its worker, because every system has its own
environment. It defines `make(settings)`, which returns `prepare(batches)`, which returns the
function that is timed.
"""

import importlib
import json
import math
import sys
import time

import numpy as np

from benchmarks.common import memory
from benchmarks.common.worker_protocol import answer_all, redirect_stdout

MODULES = {
    "trainer": "trainer_step",
    "opennmt": "opennmt_step",
    "tensor2tensor": "tensor2tensor_step",
    "matmul": "matmul_rate",
}


def main(settings):
    answers = redirect_stdout()
    module = importlib.import_module(f"benchmarks.training.{MODULES[settings['kind']]}")
    prepare, arrays = module.make(settings), np.load(settings["batches"])

    def reply(message):
        train = prepare([(arrays[f"inputs_{i}"], arrays[f"targets_{i}"]) for i in range(*message)])
        memory.reset_peak()
        start = time.perf_counter()
        result = train()
        result |= {"seconds": time.perf_counter() - start, "megabytes": memory.peak()}
        if not all(map(math.isfinite, result.get("losses", ()))):
            raise FloatingPointError(f"All losses must be finite. Received: {result['losses']}.")
        return result

    answer_all(answers, reply)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
