"""Measures the time of the matrix multiplications of a training step on this machine.

The time includes the products of token vectors and weights in float32, once forward and twice
backward (gradients of tokens and of weights). It excludes the products of tokens with tokens or
position tables in attention, embedding lookups, all other ops, and padding.
"""

import collections
import time

import numpy as np

from benchmarks.common.worker_protocol import tensorflow_with_threads
from benchmarks.training.batches import count_tokens

REPEATS = 5


def count_weights(config: dict) -> dict[tuple[str, int, int], int]:
    """Returns how often a forward pass multiplies the tokens of a side by weights of a shape.

    Args:
        config: fields of a `TransformerConfig`.

    Returns:
        `{(side, rows, columns): count}`. The projections of queries, keys and values are one
        product if they have the same input.
    """
    width, inner = config["hidden_dim"], config["intermediate_dim"]
    encoder, decoder = config["num_encoder_layers"], config["num_decoder_layers"]
    counts = collections.Counter()
    for side, layers in (("source", encoder), ("target", decoder)):
        for shape in ((width, 3 * width), (width, width), (width, inner), (inner, width)):
            counts[side, *shape] += layers
    # Cross-attention: keys and values of the source, queries and outputs of the target.
    counts["source", width, 2 * width] += decoder
    counts["target", width, width] += 2 * decoder
    counts["target", width, config["vocab_size"]] += 1
    return counts


def count_flops(config: dict, tokens: dict[str, int]) -> int:
    """Returns the FLOPs of a training step's products for the given numbers of tokens by side."""
    return sum(
        3 * 2 * count * tokens[side] * rows * columns
        for (side, rows, columns), count in count_weights(config).items()
    )


def make(settings: dict):
    """Returns `prepare(batches)`, which returns a function that measures the FLOPs per second.

    The products have the mean size of the batches.
    """
    tf = tensorflow_with_threads(settings["threads"])
    config, rng = settings["config"], np.random.default_rng(0)

    def prepare(batches):
        tokens = {side: round(n / len(batches)) for side, n in count_tokens(batches).items()}

        def measure():
            seconds = sum(
                count * _seconds(tf, rng, (tokens[side], rows, columns))
                for (side, rows, columns), count in count_weights(config).items()
            )
            return {"flops_per_second": count_flops(config, tokens) / seconds}

        return measure

    return prepare


def _seconds(tf, rng, sizes):
    """Returns the median time of `[tokens, rows] @ [rows, columns]` and its two gradients."""
    tokens, rows, columns = sizes
    x, weights, d_y = (
        tf.constant(rng.standard_normal(shape, "float32"))
        for shape in ((tokens, rows), (rows, columns), (tokens, columns))
    )
    products = (
        (x, weights, {}),
        (d_y, weights, {"transpose_b": True}),
        (x, d_y, {"transpose_a": True}),
    )
    total = 0.0
    for a, b, transpose in products:
        times = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            tf.matmul(a, b, **transpose)
            times.append(time.perf_counter() - start)
        # The first call initializes the kernel.
        total += np.median(times[1:])
    return total
