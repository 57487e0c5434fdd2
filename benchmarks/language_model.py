r"""Measures a step of a `CausalLM` with caches, and how fast it continues a sequence.

    python -m benchmarks.language_model --threads=1

The model is the Music Transformer's kind: `relative_v2`, random weights. Implementations:

    cached       a compiled step of `generate`, which scores one row
    uncached     a compiled call of the model for all positions up to the step

The rows take turns. Columns, medians over runs with bootstrapped 95 % intervals:
    step ms              time of the step that predicts the id at this position
    uncached / cached    ratio of both times in the same run

The last line is `generate` from an empty prompt: ids per second, all searches compiled before.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from absl import app, flags
from keras import ops

from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import take_turns, tensorflow_with_threads
from t2t_relpos.backend import compile_function
from t2t_relpos.models import CausalLM, TransformerConfig


def define_flags():
    """Defines the flags of this program."""
    flags.DEFINE_list("positions", "256,512,1024", "Numbers of ids before and with the step.")
    flags.DEFINE_integer("num_layers", 8, "Number of decoder blocks.", lower_bound=1)
    flags.DEFINE_integer("hidden_dim", 512, "Width of the model.", lower_bound=1)
    flags.DEFINE_integer("vocab_size", 310, "Number of ids.", lower_bound=3)
    flags.DEFINE_integer("runs", 5, "Runs of each implementation.", lower_bound=1)
    flags.DEFINE_integer("threads", 1, "Number of threads of TensorFlow.", lower_bound=1)


def make_model(num_layers, hidden_dim, vocab_size, longest):
    """Returns a `CausalLM` with tables of half the longest length, as score2perf's."""
    config = TransformerConfig(
        vocab_size=vocab_size,
        num_decoder_layers=num_layers,
        hidden_dim=hidden_dim,
        intermediate_dim=4 * hidden_dim,
        position="relative_v2",
        max_relative_position=max(longest // 2, 1),
        use_value_table=False,
        share_heads=False,
    )
    return CausalLM(config=config)


def cached_step(model, position):
    """Returns a function that runs the step at `position - 1` of caches for `position` ids."""

    def run(ids, state):
        return model_step(ids, state)

    state, model_step = model.start_search(
        np.zeros((1, 0), "int32"), position, num_hypotheses=1, growing=False
    )
    state["sentences"]["time"] = ops.zeros((1,), dtype="int32") + position - 1
    compiled = compile_function(model, run, jit_compile=True)
    ids = ops.ones((1,), dtype="int32")
    return lambda: ops.convert_to_numpy(compiled(ids, state)[0])


def uncached_step(model, position):
    """Returns a function that computes the logits of all `position` ids."""

    def run(ids):
        return model(ids, training=False)[:, -1]

    compiled = compile_function(model, run, jit_compile=True)
    ids = ops.ones((1, position), dtype="int32")
    return lambda: ops.convert_to_numpy(compiled(ids))


def repeat(function, times):
    """Calls a function several times."""
    for _ in range(times):
        function()


def measure_steps(model, position, runs):
    """Returns two lists of seconds: of steps with caches and without."""
    cached, uncached = cached_step(model, position), uncached_step(model, position)
    cached()
    uncached()
    times = take_turns({"cached": lambda: repeat(cached, 20), "uncached": uncached}, runs)
    return [seconds / 20 for seconds in times["cached"]], times["uncached"]


def measure_generate(model, length, runs):
    """Returns a list of ids per second of `generate` from an empty prompt."""

    def generate():
        prompt = np.zeros((1, 0), "int32")
        return model.generate(prompt, sampler="greedy", max_length=length, stop_token_ids=None)

    generate()
    return [length / seconds for seconds in take_turns({"generate": generate}, runs)["generate"]]


def main(_):
    """Prints a row for each position, and the speed of `generate`."""
    values = flags.FLAGS
    positions = [int(position) for position in values.positions]
    if keras.backend.backend() == "tensorflow":
        tensorflow_with_threads(values.threads)
    keras.utils.set_random_seed(0)
    sizes = values.num_layers, values.hidden_dim, values.vocab_size
    model = make_model(*sizes, max(positions))
    print_header(["positions", "cached step ms", "uncached step ms", "uncached / cached"])
    for position in positions:
        cached, uncached = measure_steps(model, position, values.runs)
        ratios = [y / x for x, y in zip(cached, uncached)]
        cells = [[1000 * x for x in cached], [1000 * y for y in uncached], ratios]
        print_cells([str(position), *map(format_median, cells)])
    speeds = measure_generate(model, max(positions), values.runs)
    print(f"generate, {max(positions)} ids: {format_median(speeds, 0)} ids/s")


if __name__ == "__main__":
    define_flags()
    app.run(main)
