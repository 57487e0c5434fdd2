"""Where the time of a step of decoding goes, in an exported model.

    python benchmarks/decode_step.py --saved_model=saved_models/mine/1 --text=test.en --batch=32

Translates batches of sentences sorted by length in a session that records when each operation ran, one thread. Prints the
milliseconds per step of the search in each kind of operation, the share, and how many operations there are; what is left of the time
that the same batches take when nothing is recorded stands as "between operations": TensorFlow's executor, negative where recording costs
more than that. The encoder, the tokenizer and the detokenizer are among the operations.
"""

import collections
import os
import re
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers operations)
from absl import app, flags

from benchmarks.decoding import models

FLAGS = flags.FLAGS
flags.DEFINE_string("saved_model", None, "Version directory of an exported model.", required=True)
flags.DEFINE_string("text", None, "Sentences, one a line; may be .gz.", required=True)
flags.DEFINE_integer("sentences", 192, "Of the text.", lower_bound=1)
flags.DEFINE_integer("batch", 32, "Sentences of a batch.", lower_bound=1)
flags.DEFINE_integer("runs", 5, "Over all batches; the fastest counts.", lower_bound=1)

KINDS = {
    "products with weights": {"MatMul", "_FusedMatMul", "_MklMatMul", "_MklFusedMatMul"},
    "products of attention": {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"},
    "attention's softmax": {"Softmax"},
    "normalizing and finding candidates": {"Exp", "Log", "Sum", "Max", "TopKV2", "Abs"},
    "moving: transpose, concatenate, gather": {
        *(
            "Transpose",
            "ConcatV2",
            "GatherV2",
            "ResourceGather",
            "Tile",
            "Unpack",
            "Slice",
            "StridedSlice",
            "TensorScatterUpdate",
        )
    },
    "loops": {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "ControlTrigger"},
    "sizes, constants, reading variables": {
        "Shape",
        "Reshape",
        "Pack",
        "Const",
        "ReadVariableOp",
        "Identity",
        "ExpandDims",
    },
}
OTHER, BETWEEN = "sums, layer normalization, other", "between operations"
# Of a step: the best groups, the best candidates, those that live on, those that are finished.
TOP_KS_A_STEP = 4


def kind_of(operation):
    return next((kind for kind, operations in KINDS.items() if operation in operations), OTHER)


def operations(metadata):
    """Type and microseconds of every operation that ran."""
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            found = re.search(r" = (\w+)\(", node.timeline_label)
            if found:
                yield found.group(1), node.op_end_rel_micros - node.op_start_rel_micros


def run_all(session, fetch, feed, batches, options=None):
    """Seconds, and the operations that were recorded."""
    recorded, seconds = [], 0.0
    for batch in batches:
        metadata = tf.compat.v1.RunMetadata()
        start = time.perf_counter()
        session.run(
            fetch, {feed: batch}, options=options, run_metadata=metadata if options else None
        )
        seconds += time.perf_counter() - start
        recorded += operations(metadata)
    return seconds, recorded


def measure(session, signature, batches):
    """Milliseconds and counts by kind, of the whole run."""
    fetch, feed = signature.outputs["translations"].name, signature.inputs["text"].name
    run_all(session, fetch, feed, batches)
    seconds = min(run_all(session, fetch, feed, batches)[0] for _ in range(FLAGS.runs))
    trace = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    runs = [run_all(session, fetch, feed, batches, trace)[1] for _ in range(FLAGS.runs)]
    fastest = min(runs, key=lambda recorded: sum(micros for _, micros in recorded))
    micros, counts = collections.Counter(), collections.Counter()
    for operation, duration in fastest:
        micros[kind_of(operation)] += duration / 1e3
        counts[kind_of(operation)] += 1
    micros[BETWEEN] = 1e3 * seconds - sum(micros.values())
    steps = sum(operation == "TopKV2" for operation, _ in fastest) // TOP_KS_A_STEP
    return micros, counts, steps


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    sentences = sorted(models.read_lines(FLAGS.text)[: FLAGS.sentences], key=len)
    batches = [sentences[i : i + FLAGS.batch] for i in range(0, len(sentences), FLAGS.batch)]
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], FLAGS.saved_model)
        milliseconds, counts, steps = measure(
            session, model.signature_def["serving_default"], batches
        )
    total = sum(milliseconds.values())
    print(
        f"{steps} steps, {total / steps:.2f} ms each\n\n| kind | ms a step | share | operations a step |\n| --- | --- | --- | --- |"
    )
    for kind, value in milliseconds.most_common():
        print(
            f"| {kind} | {value / steps:.2f} | {100 * value / total:.0f} % | {counts[kind] / steps:.0f} |"
        )


if __name__ == "__main__":
    app.run(main)
