"""The functions of `t2t_relpos.backend` that differ on TensorFlow, and its private API."""

import functools
import math

import keras
import tensorflow as tf
from keras import ops

from t2t_relpos.backend import keras_ops
from t2t_relpos.backend.keras_ops import MASKED_SCORE, accumulation_dtype
from t2t_relpos.backend.keras_private import changed, variables_of_running


def _changed(name):
    return ImportError(
        f"{name} is missing or different in TensorFlow {tf.__version__}. Install a version of "
        "TensorFlow that setup.cfg allows."
    )


def _never_inlined(function):
    try:
        return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    except (TypeError, ValueError) as error:
        raise _changed('experimental_attributes={"_noinline": True} of tf.function') from error


try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
except ImportError as error:
    raise _changed("control_flow_util.GraphOrParentsInXlaContext") from error
_never_inlined(lambda: None)
try:
    # Reduces the first batch of `fit` and `evaluate` over the replicas, by strategy.reduce("MEAN"),
    # and builds the model with the result.
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    _BUILD = TensorFlowTrainer._maybe_symbolic_build.__code__
except (ImportError, AttributeError) as error:
    raise changed("_maybe_symbolic_build of keras.Model") from error

__all__ = [
    "as_tensor",
    "as_tensors",
    "call_shared",
    "can_slice",
    "check_dense",
    "check_inputs_dense",
    "compile_function",
    "custom_gradient",
    "device",
    "dropout_factors",
    "graph",
    "has_dynamic_shapes",
    "hide_constant",
    "is_building_from_averages",
    "is_compiled",
    "is_compiled_by_xla",
    "is_portable",
    "layer_normalization",
    "matmul_transposed",
    "project",
    "shape",
    "size",
    "softmax",
    "take_beams",
    "take_distinct_rows",
    "take_rows",
    "take_table_rows",
    "without_autograph",
    "write_slice",
]


def without_autograph(function):
    return tf.autograph.experimental.do_not_convert(function)


def is_compiled_by_xla():
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def is_compiled(tensor):
    return is_compiled_by_xla()


def has_dynamic_shapes():
    return not is_compiled_by_xla()


def is_portable():
    # Eager calls skip the search of the call stack.
    if tf.executing_eagerly():
        return keras_ops.is_in_portable()
    return keras_ops.is_portable()


def is_building_from_averages():
    build = variables_of_running(_BUILD)
    # The batch of `train_on_batch` has no iterator, and is not reduced.
    if build is None or build["iterator"] is None:
        return False
    return build["self"].distribute_strategy.num_replicas_in_sync > 1


def compile_function(model, function, *, jit_compile):
    # XLA needs the shapes that a relaxed signature would hide.
    return tf.function(
        function, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False
    )


def device():
    kinds = (kind for kind in ("TPU", "GPU") if tf.config.get_visible_devices(kind))
    return next(kinds, "CPU").lower()


def check_dense(x, name):
    if hasattr(x, "row_splits") or getattr(x, "ragged", False) is True:
        raise ValueError(
            f"Expected {name} to be dense. Received: a RaggedTensor of shape {x.shape}. Convert it "
            "with `.to_tensor()`, which pads with 0, and pass a padding mask, for example "
            "`tf.sequence_mask(x.row_lengths())`. Models need no mask: id 0 is padding."
        )


def check_inputs_dense(layer, inputs):
    for x in keras.tree.flatten(inputs):
        check_dense(x, f"the inputs of {type(layer).__name__}")


def as_tensor(x):
    check_dense(x, "tensors")
    x = keras_ops.as_tensor(x)
    return None if x is None else tf.convert_to_tensor(x)


def as_tensors(x, *others):
    return keras_ops.as_tensors(*map(as_tensor, (x, *others)))


def shape(x):
    return tf.shape(x)


def size(x, axis):
    # keras.ops.shape computes the other sizes too, and would run operations for them.
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def graph():
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def can_slice(*sizes):
    return True


def hide_constant(x):
    x = tf.convert_to_tensor(x)
    return tf.raw_ops.PlaceholderWithDefault(input=x, shape=x.shape)


# keras.ops runs several operations to gather rows, because it supports negative indices.


def take_rows(x, index):
    return tf.gather(x, index)


def take_beams(x, index):
    return tf.gather(x, index, batch_dims=1)


def custom_gradient(forward, backward, plain, tensors):
    # In the gradient of a branch of tf.cond, TensorFlow loses an input of the branch that both a
    # custom gradient and another gradient read: "You must feed a value for placeholder tensor".
    copies = {name: tf.identity(x) for name, x in tensors.items()}
    return keras_ops.custom_gradient(forward, backward, plain, copies)


def project(x, kernel, bias, contracted):
    # In rank 2: of other ranks, tf.matmul needs 20 operations for unknown sizes.
    rows, columns = math.prod(kernel.shape[:contracted]), kernel.shape[contracted:]
    outer = _leading_sizes(x)
    product = ops.matmul(
        ops.reshape(x, (-1, rows)), ops.reshape(kernel, (rows, math.prod(columns)))
    )
    if bias is not None:
        product = ops.add(product, ops.reshape(bias, (-1,)))
    return tf.reshape(product, (*outer, *columns))


def _leading_sizes(x):
    """Returns the first two sizes of a tensor for a reshape: one that is unknown is -1."""
    sizes = x.shape[:2].as_list()
    if sizes.count(None) > 1 or 0 in sizes:
        return tf.unstack(tf.shape(x)[:2])
    return [-1 if size is None else size for size in sizes]


def matmul_transposed(x, y):
    return tf.matmul(x, y, transpose_b=True)


def write_slice(x, update, start, axis):
    if is_compiled_by_xla():
        return keras_ops.write_slice(x, update, start, axis)
    x = tf.convert_to_tensor(x)
    count = tf.shape(update)[axis]
    rest = tf.shape(x)[axis] - count
    start = tf.clip_by_value(tf.cast(start, tf.int32), 0, rest)
    before, _, after = tf.split(x, tf.stack([start, count, rest - start]), axis)
    return tf.ensure_shape(tf.concat([before, update, after], axis), x.shape)


# Largest number of bodies of a function, and of functions with static arguments, that are kept.
MAX_BODIES = 64


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


@functools.lru_cache(MAX_BODIES)
def _shared(function, static):
    return shared_function(functools.partial(function, static))


def call_shared(function, static, tensors):
    if is_compiled_by_xla():
        return function(static, tensors)
    return _shared(function, static)(tensors)


@without_autograph
def take_table_rows(table, ids):
    # A table has few rows and ids repeat. Summing gradients by a product with one-hot ids is
    # several times as fast as the scatter of tf.gather's gradient.

    @tf.custom_gradient
    def gather(table):
        def gradient(d_rows):
            return _sum_by_id(d_rows, ids, table.shape[-2])

        return tf.gather(table, ids, axis=-2), gradient

    return gather(tf.convert_to_tensor(table))


def _sum_by_id(rows, ids, num_ids):
    """Sums the rows of pairs by id, `[T, S, H]` -> `[R, H]` or `[N, T, S, H]` -> `[N, R, H]`.

    It is the transpose of `take_table_rows`.
    """
    shape, ids = tf.shape(rows), tf.reshape(ids, [-1])
    flat = tf.reshape(rows, tf.concat([shape[:-3], [shape[-3] * shape[-2], shape[-1]]], 0))
    if ids.shape[0] is not None or is_compiled_by_xla():
        one_hot = tf.one_hot(ids, num_ids, dtype=rows.dtype)
        return tf.matmul(one_hot, flat, transpose_a=True)
    # Of unknown lengths, the table may have many more rows than there are distances.
    first = tf.minimum(tf.reduce_min(ids), num_ids - 1)
    last = tf.maximum(tf.reduce_max(ids), first)
    one_hot = tf.one_hot(ids - first, last - first + 1, dtype=rows.dtype)
    sums = tf.matmul(one_hot, flat, transpose_a=True)
    padding = [*[[0, 0]] * (len(rows.shape) - 3), [first, num_ids - 1 - last], [0, 0]]
    return tf.ensure_shape(tf.pad(sums, padding), [*rows.shape[:-3], num_ids, rows.shape[-1]])


@without_autograph
def softmax(scores, mask):
    if mask is None:
        return keras_ops.softmax(scores, None)
    mask = tf.cast(mask, tf.bool)

    # The gradient needs no mask, because the weights of masked entries are zero.
    @tf.custom_gradient
    def run(scores):
        weights = tf.nn.softmax(tf.where(mask, scores, tf.cast(MASKED_SCORE, scores.dtype)))
        weights = tf.where(mask, weights, tf.zeros([], weights.dtype))

        def gradient(d_weights):
            return weights * (d_weights - tf.reduce_sum(d_weights * weights, -1, keepdims=True))

        return weights, gradient

    return run(scores)


def as_seed(drawn, block=None):
    """Converts a seed of keras.random.SeedGenerator to int32 `[2]`, another one for each block."""
    seed = tf.bitcast(tf.cast(drawn, tf.uint32), tf.int32)
    return seed if block is None else tf.random.experimental.stateless_fold_in(seed, block)


def dropout_factors(shape, rate, seed, dtype, block=None):
    # 16 random bits per entry are half as many as tf.nn.dropout draws.
    steps = 2**16
    threshold = min(round(rate * steps), steps - 1)
    keep = tf.cast(_random_int16(shape, as_seed(seed, block)) >= threshold - steps // 2, dtype)
    return keep * (steps / (steps - threshold))


def _random_int16(shape, seed):
    """Returns a tensor of random int16. One 64-bit draw gives four of them."""
    size = tf.reduce_prod(shape, keepdims=True)
    draws = tf.random.stateless_uniform((size + 3) // 4, seed, None, None, tf.int64)
    # tf.slice copies nothing if the size is divisible by four.
    return tf.reshape(tf.slice(tf.reshape(tf.bitcast(draws, tf.int16), [-1]), [0], size), shape)


def layer_normalization(inputs, gamma, beta, axes, epsilon):
    # In Keras's layer, the gradients of the separate operations read the inputs about twice as
    # often.
    if axes != [len(inputs.shape) - 1] or gamma is None or beta is None:
        return None
    dtype = accumulation_dtype(inputs.dtype)
    return _normalize(*(ops.cast(x, dtype) for x in (inputs, gamma, beta)), epsilon)


@without_autograph
def _normalize(x, gamma, beta, epsilon):
    @tf.custom_gradient
    def normalized_times(x, gamma, beta):
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True) + epsilon)
        normalized = centered * scale

        def gradient(d_outputs):
            d_gamma = _sum_of_rows(d_outputs * normalized)
            d_beta = _sum_of_rows(d_outputs)
            d_normalized = d_outputs * gamma
            mean = tf.reduce_mean(d_normalized, axis=-1, keepdims=True)
            mean_product = tf.reduce_mean(d_normalized * normalized, axis=-1, keepdims=True)
            return (d_normalized - mean - normalized * mean_product) * scale, d_gamma, d_beta

        return normalized * gamma + beta, gradient

    return normalized_times(x, gamma, beta)


def _sum_of_rows(x):
    # BiasAddGrad is up to five times as fast as tf.reduce_sum.
    return tf.raw_ops.BiasAddGrad(out_backprop=x)


@without_autograph
def take_distinct_rows(x, indices, inverse_indices):
    # No row is gathered twice, so the gradient is a gather too.

    @tf.custom_gradient
    def run(x):
        return _take(x, indices), lambda d_rows: _take(d_rows, inverse_indices)

    return run(tf.convert_to_tensor(x))


def _take(x, indices):
    if x.shape[0] is None and indices.shape[0] is not None:
        # There may be no rows. A gather from an empty tensor would fail.
        empty = lambda: tf.zeros([indices.shape[0], x.shape[1]], x.dtype)
        return tf.cond(tf.shape(x)[0] > 0, lambda: _gather(x, indices), empty)
    return _gather(x, indices)


def _gather(x, indices):
    if is_compiled_by_xla():
        # XLA clamps invalid indices.
        rows = tf.gather(x, tf.maximum(indices, 0))
        return tf.where(indices[:, None] < 0, tf.zeros([], x.dtype), rows)
    # Invalid indices give zeros: always on GPUs, and with this policy on CPUs.
    return tf.gather_nd(x, tf.expand_dims(indices, 1), bad_indices_policy="IGNORE")
