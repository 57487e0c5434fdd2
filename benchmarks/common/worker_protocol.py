"""The worker's side of `worker_processes`. Imports only the standard library at module level.

Workers also run in the environments of other packages.
"""

import json
import os
import sys


def redirect_stdout():
    """Redirects stdout to stderr, so that libraries can print. Returns a file for the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer_all(answers, reply):
    """Writes "ready", then `reply(message)` for every message, a line of JSON, until stdin ends."""
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(reply(json.loads(line))), file=answers, flush=True)


def tensorflow_with_threads(threads: int):
    """Returns the module `tensorflow`, limited to `threads` threads per op and one op at a time."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf
