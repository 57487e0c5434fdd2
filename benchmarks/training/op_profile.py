"""Where the time of a training step goes: milliseconds by kind of operation, as TensorFlow's own profiler sees them.

    python benchmarks/step_profile.py --train_source=train.en.gz --train_target=train.de.gz
    python benchmarks/step_profile.py --position=sinusoidal

The step is that of benchmarks/training.py, on one thread and batches in memory. Products of tokens and weights are `MatMul`, those
of attention `BatchMatMul`; `_Mkl` before a name is oneDNN's. The last line is what is left of the step beside all operations.
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

from benchmarks.common.tables import print_cells, print_header
from benchmarks.training import trainer_step
from benchmarks.training.batches import count_tokens, make_batches
from t2t_relpos.models import PRESETS, TransformerConfig
from trainer.config import POSITIONS

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "tiny", sorted(PRESETS), "The architecture.")
flags.DEFINE_enum("position", None, POSITIONS, "How positions enter. Default: as the preset says.")
flags.DEFINE_integer(
    "vocab_size",
    8000,
    "Pieces of the vocabulary, which is learned from the training text.",
    lower_bound=4,
)
flags.DEFINE_string(
    "train_source", "", "Source sentences, one a line; may be .gz. Default: the embedded corpus."
)
flags.DEFINE_string("train_target", "", "Their translations.")
flags.DEFINE_integer(
    "batch_tokens", 4096, "Tokens of the longer side in a batch, padding included.", lower_bound=1
)
flags.DEFINE_integer(
    "steps", 4, "Steps that are profiled; as many before them are not.", lower_bound=1
)
flags.DEFINE_integer(
    "rows", 20, "Kinds of operations that are shown, those that take longest.", lower_bound=1
)


def profile(function):
    """(seconds that a function takes, the recorded profile)."""
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


def by_operation(space):
    """Seconds of the operations in a profile and their number, each by kind."""
    seconds, number = collections.Counter(), collections.Counter()
    for plane in space.planes:
        # An operation is called "its name:its kind", with details behind a "#"; other events have no kind of operation there.
        kinds = {
            key: event.name.partition("#")[0].rpartition(":")[2]
            for key, event in plane.event_metadata.items()
        }
        kinds = {key: kind for key, kind in kinds.items() if op_def_registry.get(kind) is not None}
        for event in (event for line in plane.lines for event in line.events):
            if event.metadata_id in kinds:
                seconds[kinds[event.metadata_id]] += event.duration_ps / 1e12
                number[kinds[event.metadata_id]] += 1
    return seconds, number


def print_table(whole, seconds, number):
    """Prints a line for each kind of operation that takes long, for the others together, and for the rest of a step."""
    print_header(("operation", "times a step", "ms a step", "share"))

    def show(name, times, taken):
        print_cells([name, times, f"{1e3 * taken / FLAGS.steps:.1f}", f"{taken / whole:.1%}"])

    longest = [kind for kind, _ in seconds.most_common(FLAGS.rows)]
    for kind in longest:
        show(f"`{kind}`", f"{number[kind] / FLAGS.steps:.0f}", seconds[kind])
    others = [kind for kind in seconds if kind not in longest]
    show(
        f"{len(others)} other kinds",
        f"{sum(number[kind] for kind in others) / FLAGS.steps:.0f}",
        sum(seconds[kind] for kind in others),
    )
    show("no operation", "", whole - seconds.total())


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    changes = {} if FLAGS.position is None else {"position": FLAGS.position}
    config = TransformerConfig.from_preset(FLAGS.preset, vocab_size=FLAGS.vocab_size, **changes)
    settings = {
        "config": config.to_dict(),
        "preset": FLAGS.preset,
        "label_smoothing": 0.1,
        "precision": "float32",
        "threads": 1,
    }
    # Before TensorFlow makes batches: it sets the number of threads.
    prepare = trainer_step.make(settings)
    try:
        batches = make_batches(
            FLAGS.train_source,
            FLAGS.train_target,
            FLAGS.vocab_size,
            FLAGS.batch_tokens,
            256,
            FLAGS.steps,
        )
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    prepare(batches)()
    whole, space = profile(prepare(batches))
    tokens = sum(count_tokens(batches).values())
    print(
        f"{FLAGS.preset}, {config.position}, {1e3 * whole / FLAGS.steps:.0f} ms a step of {tokens / FLAGS.steps:.0f} tokens\n"
    )
    print_table(whole, *by_operation(space))


if __name__ == "__main__":
    app.run(main)
