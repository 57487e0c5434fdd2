"""Implementations that take turns: functions of one process, or worker processes."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import memory

ROOT = Path(__file__).parents[1]


class Worker:
    """A process that answers each line of JSON with one line of JSON.

    Args:
        module: the program, which calls `answer_all`.
        settings: passed to the program as JSON. "kind" and "threads" are required.
    """

    def __init__(self, module: str, settings: dict):
        self.kind = settings["kind"]
        variables = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        variables = child_environment() | variables | {"OMP_NUM_THREADS": str(settings["threads"])}
        command, pipe = [sys.executable, "-m", module, json.dumps(settings)], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables)

    def ask(self, message):
        """Sends a message and returns its answer. Both consist of JSON types."""
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self.read_answer()

    def read_answer(self):
        """Returns the next answer."""
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            raise RuntimeError(f"The worker {self.kind!r} exited with status {status}.")
        return json.loads(line)

    def close(self):
        """Closes the pipes, which ends the process, and waits for it."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def ask_in_turns(module: str, settings: dict[str, dict], questions: list[list]):
    """Starts a worker of `module` for each of the settings, and sends them messages in turns.

    Yields for each list of messages in `questions` the lists of answers by name.
    """
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, each in settings.items():
            workers[name] = Worker(module, each)
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.read_answer()
        for messages in questions:
            answers = {name: [] for name in workers}
            for run, name in in_turns(workers, len(messages)):
                answers[name].append(workers[name].ask(messages[run]))
            yield answers


def answer_all(start):
    """Runs a worker: writes "ready", then an answer to every line of JSON, until stdin ends.

    Libraries may print, because stdout is redirected to stderr first.

    Args:
        start: takes the settings. Returns a function from messages to functions, whose results are
            the answers, with "seconds" and the peak memory in "megabytes".
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare = start(json.loads(sys.argv[1]))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        function = prepare(json.loads(line))
        memory.reset_peak()
        begin = time.perf_counter()
        answer = {"result": function(), "seconds": time.perf_counter() - begin}
        print(json.dumps(answer | {"megabytes": memory.peak()}), file=answers, flush=True)


def tensorflow_with_threads(threads: int):
    """Returns the module `tensorflow`, limited to `threads` threads per op and one op at a time."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def child_environment() -> dict[str, str]:
    """Returns the environment of child processes, in which `benchmarks` can be imported."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def in_turns(names, runs: int):
    """Yields `(run, name)` for every run and name. The order of names rotates between runs."""
    names = list(names)
    for run in range(runs):
        first = run % len(names)
        for name in names[first:] + names[:first]:
            yield run, name


def take_turns(steps: dict, runs: int, seconds: float = float("inf")) -> dict[str, list[float]]:
    """Returns the seconds of every run of every step. Call each step before, so that it compiles.

    Args:
        steps: functions without arguments by name. They return when their results are computed.
        runs: number of turns.
        seconds: no turn of all steps begins after this time, except for the first three.
    """
    times, end = {name: [] for name in steps}, time.perf_counter() + seconds
    for run, name in in_turns(steps, runs):
        is_first = len(set(map(len, times.values()))) == 1
        if run >= 3 and is_first and time.perf_counter() > end:
            break
        start = time.perf_counter()
        steps[name]()
        times[name].append(time.perf_counter() - start)
    return times
