"""How fast this machine multiplies matrices of the shapes of a training step: what the step would take if it did nothing else.

Counted are the products of token vectors with weights: of every position that is a token, in each layer queries, keys and values at
once, the output, the two of the feed-forward network, the decoder's keys and values of the source, and the scores of the vocabulary;
once forward and twice backward, for the gradients of tokens and weights. Not counted: attention's products of tokens with tokens and
with tables of positions, embeddings looked up, everything that is no product, and padding. All of it is float32.
"""

import time

import numpy as np

from benchmarks.common.worker_protocol import tensorflow_with_threads

REPEATS = 5


def products(config: dict) -> dict[tuple[str, int, int], int]:
    """How often a forward pass multiplies the tokens of a side with weights of `[inner, columns]`: `(side, inner, columns)` -> count.

    Args:
        config: settings of a `TransformerConfig`.
    """
    width, inner = config["hidden_dim"], config["intermediate_dim"]
    encoder, decoder = config["num_encoder_layers"], config["num_decoder_layers"]
    feed_forward = [(width, inner), (inner, width)]
    counts = {
        ("source", *shape): encoder for shape in [(width, 3 * width), (width, width), *feed_forward]
    }
    counts["source", width, 2 * width] = decoder
    counts |= {("target", *shape): decoder for shape in [(width, 3 * width), *feed_forward]}
    # Two outputs, and the queries of the attention to the source.
    counts["target", width, width] = 3 * decoder
    counts["target", width, config["vocab_size"]] = 1
    return counts


def operations(config: dict, tokens: dict[str, int]) -> int:
    """Multiplications and additions of a training step on so many tokens of `source` and `target`."""
    return sum(
        3 * 2 * count * tokens[side] * inner * columns
        for (side, inner, columns), count in products(config).items()
    )


def make(settings):
    """Measures the rate at the mean size of given batches."""
    tf = tensorflow_with_threads(settings["threads"])
    generator = np.random.default_rng(0)

    def draw(*shape):
        return tf.constant(generator.standard_normal(shape, "float32"))

    def prepare(batches):
        tokens = {
            "source": round(np.mean([np.count_nonzero(inputs) for inputs, _ in batches])),
            "target": round(np.mean([np.count_nonzero(targets) for _, targets in batches])),
        }

        def measure():
            total = 0.0
            for (side, inner, columns), count in products(settings["config"]).items():
                x, weights, upstream = (
                    draw(tokens[side], inner),
                    draw(inner, columns),
                    draw(tokens[side], columns),
                )
                total += count * _seconds(lambda: tf.matmul(x, weights))
                total += count * _seconds(lambda: tf.matmul(upstream, weights, transpose_b=True))
                total += count * _seconds(lambda: tf.matmul(x, upstream, transpose_a=True))
            return {"operations_per_second": operations(settings["config"], tokens) / total}

        return measure

    return prepare


def _seconds(multiply):
    multiply()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - start)
    return np.median(times)
