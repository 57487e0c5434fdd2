"""Runs steps of the attention benchmark with the library of one checkout, in its own process.

Started by `compare_checkouts`. Messages:
    {"case": CASE}     builds a step
    {"steps": N}       returns the mean seconds of N steps
    {"memory": CASE}   returns the peak memory of a step in MB; must be the only message
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.common.worker_protocol import answer_all, redirect_stdout, tensorflow_with_threads


class StepRunner:
    """Builds a step and measures it.

    Args:
        options: fields of `steps.Options`.
    """

    def __init__(self, options: dict):
        # Imported here because `main` changes sys.path first.
        from benchmarks.attention import steps

        self.steps, self.options, self.step = steps, steps.Options(**options), None

    def reply(self, message: dict):
        if "memory" in message:
            case = self.steps.Case(**message["memory"])
            return self.steps.measure_peak_memory("relative", case, self.options)
        if "case" in message:
            # Free the previous step before the new one is built.
            self.step = None
            case = self.steps.Case(**message["case"])
            self.step = self.steps.make_step("relative", case, self.options)
            self.step()
            self.step()
            return None
        start = time.perf_counter()
        for _ in range(message["steps"]):
            self.step()
        return (time.perf_counter() - start) / message["steps"]


def main(settings: dict):
    answers = redirect_stdout()
    checkout = Path(settings["checkout"]).resolve()
    sys.path.insert(0, str(checkout))
    tensorflow_with_threads(settings["threads"])
    import t2t_relpos

    imported = Path(t2t_relpos.__file__).parents[1].resolve()
    if imported != checkout:
        raise ImportError(f"Expected t2t_relpos of {checkout}. Received: that of {imported}.")
    answer_all(answers, StepRunner(settings["options"]).reply)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
