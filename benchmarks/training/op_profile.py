"""Prints the time of a training step by op type, as recorded by TensorFlow's profiler.

    python -m benchmarks.training.op_profile --train_source=train.en.gz --train_target=train.de.gz
    python -m benchmarks.training.op_profile --position=sinusoidal

Profiles the step of `benchmarks.training` in float32 on one thread with batches in memory. `MatMul`
multiplies tokens by weights, `BatchMatMul` is attention, and the prefix `_Mkl` marks oneDNN. The
last row is the time of the step outside all ops.
"""

import collections
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from absl import app, flags
from tensorflow.python.framework import op_def_registry
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.common.flag_checks import check_no_arguments
from benchmarks.common.tables import print_cells, print_header
from benchmarks.training import batches as batches_module
from benchmarks.training import trainer_step
from t2t_relpos.models import PRESETS, TransformerConfig
from trainer.config import POSITIONS

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "tiny", sorted(PRESETS), "Architecture.")
flags.DEFINE_enum(
    "position", None, POSITIONS, "Position representation. Default: the preset's value."
)
batches_module.define_flags()
flags.DEFINE_integer("steps", 4, "Steps to profile, after as many warm-up steps.", lower_bound=1)
flags.DEFINE_integer("rows", 20, "Op types to print, in descending order of time.", lower_bound=1)


def profile(function):
    """Calls a function. Returns its seconds and the recorded profile."""
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=3, python_tracer_level=0
        )
        with tf.profiler.experimental.Profile(folder, options):
            start = time.perf_counter()
            function()
            seconds = time.perf_counter() - start
        (file,) = Path(folder).glob("**/*.xplane.pb")
        return seconds, xplane_pb2.XSpace.FromString(file.read_bytes())


def sum_by_op_type(space):
    """Returns the seconds and the number of executions in a profile, both by op type."""
    seconds, executions = collections.Counter(), collections.Counter()
    for plane in space.planes:
        # Ops are recorded as "NAME:TYPE#DETAILS"; other events have no registered type.
        types = {
            key: event.name.partition("#")[0].rpartition(":")[2]
            for key, event in plane.event_metadata.items()
        }
        types = {key: op for key, op in types.items() if op_def_registry.get(op) is not None}
        for event in (event for line in plane.lines for event in line.events):
            if event.metadata_id in types:
                seconds[types[event.metadata_id]] += event.duration_ps / 1e12
                executions[types[event.metadata_id]] += 1
    return seconds, executions


def print_table(step_seconds, seconds, executions):
    """Prints rows for the slowest op types, for the other types, and for the time outside ops."""
    print_header(("op type", "executions/step", "ms/step", "share"))

    def print_row(name, executions, seconds):
        share = f"{seconds / step_seconds:.1%}"
        print_cells([name, executions, f"{1e3 * seconds / FLAGS.steps:.1f}", share])

    slowest = [op for op, _ in seconds.most_common(FLAGS.rows)]
    for op in slowest:
        print_row(f"`{op}`", f"{executions[op] / FLAGS.steps:.0f}", seconds[op])
    others = [op for op in seconds if op not in slowest]
    print_row(
        f"{len(others)} other types",
        f"{sum(executions[op] for op in others) / FLAGS.steps:.0f}",
        sum(seconds[op] for op in others),
    )
    print_row("outside ops", "", step_seconds - seconds.total())


def main(argv):
    check_no_arguments(argv)
    changes = {} if FLAGS.position is None else {"position": FLAGS.position}
    config = TransformerConfig.from_preset(FLAGS.preset, vocab_size=FLAGS.vocab_size, **changes)
    settings = {
        "config": config.to_dict(),
        "preset": FLAGS.preset,
        "label_smoothing": 0.1,
        "precision": "float32",
        "threads": 1,
    }
    # Sets the number of threads, which TensorFlow allows only before its first op.
    prepare = trainer_step.make(settings)
    batches = batches_module.batches_from_flags(FLAGS.steps)
    prepare(batches)()
    seconds, space = profile(prepare(batches))
    tokens = sum(batches_module.count_tokens(batches).values())
    print(
        f"{FLAGS.preset}, {config.position}, {1e3 * seconds / FLAGS.steps:.0f} ms/step, "
        f"{tokens / FLAGS.steps:.0f} tokens/step\n"
    )
    print_table(seconds, *sum_by_op_type(space))


if __name__ == "__main__":
    app.run(main)
