"""A model that trains in a process of its own, for benchmarks/training.py, which starts it: not run by hand.

    python training_worker.py '{"kind": "ours", "batches": FILE.npz, "config": {...}, "threads": 1, ...}'

Reads lines of JSON: `[first, end]`, numbers of batches in the file. Trains on these, one after the other, and answers with the seconds
that it took, the losses, and the most memory held meanwhile. What a kind needs is imported for it alone, since each has an
environment of its own. A kind's module has `make(settings)`, which returns `prepare(batches)`, which returns what is timed.
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
    "ours": "benchmarks.training.trainer_step",
    "opennmt": "benchmarks.training.opennmt_step",
    "t2t": "benchmarks.training.tensor2tensor_step",
    "products": "benchmarks.training.matmul_rate",
}


def main(settings):
    answers = redirect_stdout()
    prepare = importlib.import_module(MODULES[settings["kind"]]).make(settings)
    arrays = np.load(settings["batches"])

    def reply(numbers):
        train = prepare([(arrays[f"inputs_{i}"], arrays[f"targets_{i}"]) for i in range(*numbers)])
        memory.reset_peak()
        start = time.perf_counter()
        found = train()
        found |= {"seconds": time.perf_counter() - start, "megabytes": memory.peak()}
        if not all(map(math.isfinite, found.get("losses", ()))):
            raise FloatingPointError(
                f"Expected losses that are numbers. Received: {found['losses']}."
            )
        return found

    answer_all(answers, reply)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
