"""Prints the time of a decoding step by kind of op, for an exported model.

    python -m benchmarks.decoding.op_profile --saved_model=saved_models/mine/1 --text=test.en

Translates batches of sentences, sorted by length, on one thread in a session that records every
op. Includes tokenizer, encoder and detokenizer. The row "between ops" is the time without recording
minus the time of all ops; it is negative if recording costs more than TensorFlow's executor.
"""

import collections
import os
import re
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers ops)
from absl import app, flags

from benchmarks.common.flag_checks import check_no_arguments
from benchmarks.common.tables import print_cells, print_header
from benchmarks.decoding.models import read_lines

FLAGS = flags.FLAGS
flags.DEFINE_string("saved_model", None, "Version directory of an exported model.", required=True)
flags.DEFINE_string("text", None, "Sentences, one per line; may be .gz.", required=True)
flags.DEFINE_integer("sentences", 192, "Sentences to translate.", lower_bound=1)
flags.DEFINE_integer("batch", 32, "Sentences per batch.", lower_bound=1)
flags.DEFINE_integer("runs", 5, "Number of runs. Prints the fastest run.", lower_bound=1)

# Op types without the prefixes "_", "_Mkl" and "_MklNative". The last two mark oneDNN.
KINDS = {
    "matmul by weights": "MatMul FusedMatMul",
    "matmul of attention": "BatchMatMul BatchMatMulV2 BatchMatMulV3 FusedBatchMatMulV2",
    "softmax of attention": "Softmax",
    "log-probabilities and top k": "Exp Log Sum Max TopKV2 Abs",
    "transpose, concatenate, gather": "Transpose ConcatV2 GatherV2 ResourceGather Tile Unpack Slice"
    " StridedSlice TensorScatterUpdate",
    "control flow": "Switch Merge Enter Exit NextIteration LoopCond ControlTrigger",
    "shapes, constants, variables": "Shape Reshape Pack Const ReadVariableOp Identity ExpandDims",
}
KIND_OF_TYPE = {op_type: kind for kind, types in KINDS.items() for op_type in types.split()}
OTHER, BETWEEN_OPS = "sums, layer normalization, other", "between ops"
# Executions of TopKV2 in a step of beam search.
TOP_K_PER_STEP = 4


def recorded_ops(metadata):
    """Yields the type and the microseconds of every recorded op."""
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if match := re.search(r" = (\w+)\(", node.timeline_label):
                yield match.group(1), node.op_end_rel_micros - node.op_start_rel_micros


def translate(session, signature, batches, options=None):
    """Translates all batches. Returns the seconds, and the ops if `options` records them."""
    fetch, feed = signature.outputs["translations"].name, signature.inputs["text"].name
    recorded, seconds = [], 0.0
    for batch in batches:
        metadata = tf.compat.v1.RunMetadata() if options else None
        start = time.perf_counter()
        session.run(fetch, {feed: batch}, options=options, run_metadata=metadata)
        seconds += time.perf_counter() - start
        recorded += recorded_ops(metadata) if options else []
    return seconds, recorded


def measure(session, signature, batches):
    """Returns the milliseconds and the executions by kind, and the number of steps."""
    translate(session, signature, batches)
    seconds = min(translate(session, signature, batches)[0] for _ in range(FLAGS.runs))
    trace = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    runs = [translate(session, signature, batches, trace)[1] for _ in range(FLAGS.runs)]
    fastest = min(runs, key=lambda recorded: sum(micros for _, micros in recorded))
    milliseconds, executions = collections.Counter(), collections.Counter()
    for op, micros in fastest:
        kind = KIND_OF_TYPE.get(re.sub("^_(Mkl(Native)?)?", "", op), OTHER)
        milliseconds[kind] += micros / 1e3
        executions[kind] += 1
    milliseconds[BETWEEN_OPS] = 1e3 * seconds - milliseconds.total()
    return milliseconds, executions, sum(op == "TopKV2" for op, _ in fastest) // TOP_K_PER_STEP


def main(argv):
    check_no_arguments(argv)
    sentences = sorted(read_lines(FLAGS.text)[: FLAGS.sentences], key=len)
    batches = [sentences[i : i + FLAGS.batch] for i in range(0, len(sentences), FLAGS.batch)]
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], FLAGS.saved_model)
        signature = model.signature_def["serving_default"]
        milliseconds, executions, steps = measure(session, signature, batches)
    total = milliseconds.total()
    print(f"{steps} steps, {total / steps:.2f} ms/step\n")
    print_header(("kind of op", "ms/step", "share", "executions/step"))
    for kind, value in milliseconds.most_common():
        numbers = f"{value / steps:.2f}", f"{value / total:.0%}", f"{executions[kind] / steps:.0f}"
        print_cells([kind, *numbers])


if __name__ == "__main__":
    app.run(main)
