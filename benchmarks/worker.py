"""What the programs of peers (peers.py) have in common. Runs in every peer's environment: imports nothing of ours."""

import json
import os
import sys


def open_answers():
    """Where answers are to be written; whatever a library prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer_all(answers, reply):
    """Says "ready", then answers each message, a line of JSON, with what `reply` makes of it, until there are no more."""
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(reply(json.loads(line))), file=answers, flush=True)


def single_session(settings):
    """TensorFlow, with its threads set."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf
