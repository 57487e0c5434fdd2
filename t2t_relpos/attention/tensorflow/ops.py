"""Operations for TensorFlow: properties, uses of its private API, lookup, dropout and softmax.

Modules that must not import TensorFlow call it through this module.

If TensorFlow changes its private API, these functions raise an ImportError with the version number.
"""

import functools

import tensorflow as tf

from t2t_relpos.attention.masks import MASKED_SCORE

# Largest number of bodies that `shared_function` keeps for one function.
MAX_BODIES = 64


def is_compiled_by_xla():
    """Returns whether the current graph is being traced for XLA."""
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError as error:
        raise _changed("control_flow_util.GraphOrParentsInXlaContext") from error
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def is_tracing():
    """Returns whether the current code is traced into a graph."""
    return not tf.executing_eagerly()


def device():
    """Returns the kind of device that TensorFlow computes on: "cpu", "gpu" or "tpu"."""
    kinds = (kind for kind in ("TPU", "GPU") if tf.config.get_visible_devices(kind))
    return next(kinds, "CPU").lower()


def as_tensor(x):
    """Returns the value of a variable, or a tensor itself."""
    return tf.convert_to_tensor(x)


def shape(x):
    """Returns the shape of a tensor as a tensor `[rank]`; the rank may be unknown."""
    return tf.shape(x)


def unknown_zero():
    """Returns a scalar 0 whose value is unknown while a graph is built."""
    return tf.raw_ops.PlaceholderWithDefault(input=0, shape=[])


def take_rows(table, ids):
    """Returns `table[ids]`, with one operation."""
    return tf.gather(table, ids)


def matmul_transposed(x, y):
    """Returns `x·yᵀ` over the last two axes, with one operation."""
    return tf.matmul(x, y, transpose_b=True)


def write_slice(x, update, start, axis):
    """Returns `x` whose entries of an axis, starting at `start`, are replaced by `update`."""
    x = tf.convert_to_tensor(x)
    count = tf.shape(update)[axis]
    rest = tf.shape(x)[axis] - count
    start = tf.clip_by_value(tf.cast(start, tf.int32), 0, rest)
    before, _, after = tf.split(x, tf.stack([start, count, rest - start]), axis)
    return tf.ensure_shape(tf.concat([before, update, after], axis), x.shape)


def shared_function(function):
    """Traces a function once per signature and never inlines it.

    All layers of a graph then share one body, which keeps graphs small. In eager mode the Python
    function runs. Arguments are tensors and NamedTuples of tensors and Python constants.

    At most `MAX_BODIES` bodies are kept for later graphs. A graph keeps the bodies that it uses.
    """
    traced = _never_inlined(function)

    @functools.wraps(function)
    def call(*args):
        nonlocal traced
        if tf.executing_eagerly():
            return function(*args)
        if traced.experimental_get_tracing_count() >= MAX_BODIES:
            traced = _never_inlined(function)
        return traced(*args)

    return call


def _never_inlined(function):
    try:
        return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    except (TypeError, ValueError) as error:
        raise _changed('experimental_attributes={"_noinline": True} of tf.function') from error


def _changed(name):
    return ImportError(
        f"{name} is missing or different in TensorFlow {tf.__version__}. Install a version of "
        "TensorFlow that setup.cfg allows."
    )


@tf.autograph.experimental.do_not_convert
def gather_rows(table, ids):
    """Returns the table row of each pair.

    A table has few rows and ids repeat. Summing gradients by a product with one-hot ids is several
    times as fast as the scatter of tf.gather's gradient.

    Args:
        table: `[R, H]` or `[N, R, H]`.
        ids: int `[T, S]`.

    Returns:
        `[T, S, H]` or `[N, T, S, H]`.
    """

    @tf.custom_gradient
    def gather(table):
        def gradient(d_rows):
            return _sum_by_id(d_rows, ids, table.shape[-2])

        return tf.gather(table, ids, axis=-2), gradient

    return gather(tf.convert_to_tensor(table))


def _sum_by_id(rows, ids, num_ids):
    """Sums the rows of pairs by id, `[T, S, H]` -> `[R, H]` or `[N, T, S, H]` -> `[N, R, H]`.

    It is the transpose of `gather_rows`.
    """
    shape = tf.shape(rows)
    flat = tf.reshape(rows, tf.concat([shape[:-3], [shape[-3] * shape[-2], shape[-1]]], 0))
    one_hot = tf.one_hot(tf.reshape(ids, [-1]), num_ids, dtype=rows.dtype)
    return tf.matmul(one_hot, flat, transpose_a=True)


@tf.autograph.experimental.do_not_convert
def masked_softmax(scores, mask):
    """Returns the softmax over the unmasked entries, zero elsewhere.

    The gradient needs no mask, because the weights of masked entries are zero.

    Args:
        scores: `[.., S]`.
        mask: bool, broadcasts to `scores`. True = attend.
    """

    @tf.custom_gradient
    def run(scores):
        weights = tf.nn.softmax(tf.where(mask, scores, tf.cast(MASKED_SCORE, scores.dtype)))
        weights = tf.where(mask, weights, tf.zeros([], weights.dtype))

        def gradient(d_weights):
            return weights * (d_weights - tf.reduce_sum(d_weights * weights, -1, keepdims=True))

        return weights, gradient

    return run(scores)


def as_seed(drawn, block=None):
    """Converts a seed from keras.random.SeedGenerator to int32 `[2]`, as TensorFlow expects.

    Args:
        drawn: the seed.
        block: number of a block, an int or a scalar tensor, or None. Each number gives a different
            seed.
    """
    seed = tf.bitcast(tf.cast(drawn, tf.uint32), tf.int32)
    return seed if block is None else tf.random.experimental.stateless_fold_in(seed, block)


def dropout_factors(shape, rate, seed, dtype):
    """Returns dropout factors: 0 with probability `rate`, otherwise 1 / (1 - rate).

    They need 16 random bits per entry, half as many as tf.nn.dropout draws.

    Args:
        shape: int32 tensor `[rank]`, or a list of ints and scalar tensors.
        rate: in `[0, 1)`, rounded to 1 / 65,536.
        seed: int32 `[2]`.
        dtype: dtype of the factors.
    """
    steps = 2**16
    threshold = min(round(rate * steps), steps - 1)
    keep = tf.cast(_random_int16(shape, seed) >= threshold - steps // 2, dtype)
    return keep * (steps / (steps - threshold))


def _random_int16(shape, seed):
    """Returns a tensor of random int16. One 64-bit draw gives four of them."""
    size = tf.reduce_prod(shape, keepdims=True)
    draws = tf.random.stateless_uniform((size + 3) // 4, seed, None, None, tf.int64)
    # tf.slice copies nothing if the size is divisible by four.
    return tf.reshape(tf.slice(tf.reshape(tf.bitcast(draws, tf.int16), [-1]), [0], size), shape)
