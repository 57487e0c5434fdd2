"""The default of every function and constant of `t2t_relpos.backend`, in keras.ops."""

import contextlib
import contextvars
import math

import keras
from keras import ops

from t2t_relpos.backend.keras_private import running_export_format

# The module with the flash-attention kernel, with the functions of `torch_flash`, or None.
flash_kernel = None


def scaled_dot_product_attention(tensors, mask, *, is_causal, plain):
    """Returns attention `[B, N, T, H]` by the backend's own function. Scores are not scaled.

    Args:
        tensors: dict of the query `[B, N, T, H]`, key and value `[B, N, S, H]`.
        mask: bool of rank 2 or 4, broadcasts to `[B, N, T, S]`, True = attend, or None.
        is_causal: whether keys after a query are masked, where T = S. `mask` is then None.
        plain: function of `tensors` with the same result, for second derivatives.
    """
    raise NotImplementedError("Only PyTorch's function is used.")


def has_fused_kernel(query):
    """Returns whether `fused_kernel` computes on the device of queries."""
    return False


def fused_kernel():
    """Returns the module with the fused kernel, `torch_fused`."""
    raise NotImplementedError("Only PyTorch has a fused kernel.")


# Whether `jit_compile=True` is supported: XLA compiles functions.
HAS_XLA = True
# dtype of indices that may not fit into int32.
LARGE_INDEX_DTYPE = "int64"
# Score of masked keys. Far below any score, and its difference to a score is finite.
MASKED_SCORE = -(2.0**100)
# Formats of `keras.Model.export` whose converters support standard operations only.
FORMATS = ("onnx", "litert", "openvino", "torch")


# What runs the code: the device, compilers, and exports.


def device():
    """Returns the kind of device that the backend computes on: "cpu", "gpu" or "tpu"."""
    return "cpu"


def on_device_of_query(function):
    """Returns a function that computes on the device of its first argument.

    On PyTorch, Keras otherwise moves all tensors to its default device.
    """
    return function


def without_autograph(function):
    """Returns a function that AutoGraph does not convert, and neither the functions that it calls.

    They have no Python `if` or `while` that depends on a tensor. Converting them takes seconds.
    """
    return function


def call_shared(function, static, tensors):
    """Returns `function(static, tensors)`.

    In a graph of TensorFlow without XLA, calls share one traced function if `function` and `static`
    are equal and the tensors have the same dtypes and shapes.

    Args:
        function: a function of the static argument and of the tensors. It uses no other tensors.
        static: a hashable value without tensors.
        tensors: a structure of tensors.
    """
    return function(static, tensors)


def as_one_node(types):
    """Returns a decorator of a function that is one node in a graph of torch.compile.

    Its code is not traced: tracing the code of Keras would take minutes, and fail. In a graph for
    one shape, the node is compiled as any other.

    Args:
        types: function of the arguments of the decorated function that returns a pair (shape, name
            of the dtype) for each of its results.

    The decorated function returns a list of tensors. Its arguments are dicts, whose values are
    tensors, numbers, strings, tuples or None. The tensor "query" of the first dict has the device
    of all tensors. A tuple may become a list.
    """
    return lambda function: function


def is_compiled_by_xla():
    """Returns whether TensorFlow is tracing a graph for XLA."""
    return False


def is_compiled(tensor):
    """Returns whether XLA or `jax.jit` compiles the code that computes a tensor."""
    return False


def has_dynamic_shapes():
    """Returns whether sizes may depend on values, and change from step to step of a loop.

    It is True on TensorFlow without XLA. Loops in Python, on PyTorch, are not meant.
    """
    return False


def graph():
    """Returns the graph that TensorFlow is tracing, or None."""
    return None


_ENTERED = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
def portable():
    """Returns a context manager in which layers use standard operations only.

    Use it with converters other than `keras.Model.export`, for example `tf.lite.TFLiteConverter`.
    `keras.Model.export` does not need it. Within the context, memory is quadratic in length.

    Example:
    >>> from t2t_relpos.attention import explain, portable
    >>> with portable():
    ...     explain(5000).chosen
    'by_id'
    """
    token = _ENTERED.set(True)
    try:
        yield
    finally:
        _ENTERED.reset(token)


def is_in_portable():
    """Returns whether the context `portable` is entered."""
    return _ENTERED.get()


def is_portable():
    """Returns whether the current code must use standard operations only.

    The result is True within `portable` and within `keras.Model.export` to one of `FORMATS`. On
    PyTorch, it is also True within `torch.onnx.export`, `torch.export.export` and
    `torch.jit.trace`.
    """
    return is_in_portable() or running_export_format() in FORMATS


def is_building_from_averages():
    """Returns whether Keras builds a model with the mean of a batch over several replicas.

    On TensorFlow, `fit` and `evaluate` do so within a strategy. Integers are floats then. The
    traced outputs give shapes only.
    """
    return False


def compile_function(model, function, *, jit_compile):
    """Returns a function of tensors, compiled as far as the backend can.

    On TensorFlow, a graph: with XLA one for each shape of its arguments, else one for batches of
    all sizes. On JAX, a jitted function that reads the model's current weights at every call, or
    with `jit_compile=False` the function itself. On PyTorch, the function without recording of
    gradients, which would keep all steps in memory.

    Args:
        model: the model whose variables the function reads.
        function: a function of tensors.
        jit_compile: whether XLA compiles it. Not used on PyTorch.
    """
    return function


def is_transformed():
    """Returns whether the current code runs in a transform of `torch.func`, such as `vmap`."""
    return False


def can_be_read(values):
    """Returns whether the host can read the values of a tensor without waiting for a device.

    They are unknown in compiled code, in transforms of `torch.func`, in `FakeTensorMode`, on an
    accelerator of PyTorch, and in other processes of JAX.
    """
    return True


def custom_gradient(forward, backward, plain, tensors):
    """Returns the outputs of `forward`, a tuple of tensors, differentiated by `backward`.

    Args:
        forward: function of a dict of tensors that returns (outputs, saved results).
        backward: function of the dict, the saved results and the gradients of the outputs, a tuple,
            that returns a dict of gradients.
        plain: function of a dict of tensors that returns the same outputs. PyTorch differentiates
            it where it needs second derivatives, or gets a batch of gradients of the outputs.
        tensors: the dict.
    """

    # Pass all tensors as arguments: JAX can't differentiate with respect to captured tensors.
    def function(*args):
        of_call = dict(zip(tensors, args))
        outputs, saved = forward(of_call)

        def gradient(*d_outputs):
            # JAX passes a tuple, TensorFlow several arguments.
            gradients = backward(of_call, saved, tuple(keras.tree.flatten(d_outputs)))
            return tuple(gradients.get(name) for name in tensors)

        return outputs, gradient

    return ops.custom_gradient(function)(*tensors.values())


def zeros_like_results(shape, dtype, tensor):
    """Returns zeros as the first state of a loop over results that depend on a tensor."""
    return ops.zeros(shape, dtype=dtype)


# Sizes, indices and dtypes.


def accumulation_dtype(dtype):
    """Returns the name of the dtype in which sums are computed: float32, or float64."""
    # `keras.backend.result_type` would return float32 for float64 on JAX and PyTorch.
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def as_size(x):
    """Returns a size as an int32 tensor if it is a tensor, otherwise unchanged."""
    return ops.cast(x, "int32") if ops.is_tensor(x) else x


def clip_size(x, low, high):
    """Returns a size limited to `[low, high]`.

    The result is an int if all arguments are ints. Otherwise it is a scalar tensor or, on JAX, a
    symbolic length.
    """
    if isinstance(x, int) and isinstance(low, int) and isinstance(high, int):
        return max(low, min(high, x))
    return ops.maximum(low, ops.minimum(high, x))


def can_slice(*sizes):
    """Returns whether slices may have these sizes: any on TensorFlow, ints on other backends."""
    return all(isinstance(n, int) for n in sizes)


def hide_constant(x):
    """Returns `x`. While TensorFlow builds a graph, its value is unknown."""
    return x


def start_indices(*indices):
    """Returns the start indices of `ops.slice` and `ops.slice_update`.

    Args:
        *indices: ints, integer tensors, or symbolic lengths of JAX.
    """
    return tuple(map(as_size, indices))


def arange(length):
    """Returns int32 `[length]`: 0, 1, 2, ...

    Args:
        length: an int, a scalar tensor, or a symbolic length of JAX.
    """
    return ops.arange(length, dtype="int32")


# Tensors.


def check_dense(x, name):
    """Raises ValueError if `x` is a tf.RaggedTensor, or stands for one in a functional model."""


def check_inputs_dense(layer, inputs):
    """Raises ValueError if a tensor in nested inputs of a layer is a tf.RaggedTensor."""


def as_tensor(x):
    """Converts a NumPy array, a variable or a tensor-like object of the backend to a tensor.

    Returns None for None. In contrast to keras.ops.convert_to_tensor, it also converts a
    tf.Variable.

    Raises:
        ValueError: if `x` is a tf.RaggedTensor.
    """
    return None if x is None else ops.convert_to_tensor(x)


def as_tensors(x, *others):
    """Converts values to tensors as `as_tensor`, and casts all to the dtype of the first one."""
    x = as_tensor(x)
    return [x, *(None if y is None else ops.cast(as_tensor(y), x.dtype) for y in others)]


def shape(x):
    """Returns the shape of a tensor; in a TensorFlow graph as a tensor `[rank]`."""
    return ops.shape(x)


def size(x, axis):
    """Returns a size of a tensor; in a TensorFlow graph as a scalar tensor if it is unknown."""
    return ops.shape(x)[axis]


def one_or_nan(condition, dtype):
    """Returns 1 where a condition holds, otherwise NaN, without a NaN constant.

    `tf.debugging.enable_check_numerics` raises an error for a constant that is not finite.
    """
    sign = ops.where(condition, ops.ones([], dtype=dtype), ops.cast(-1, dtype))
    return ops.sqrt(sign)


def largest(x, initial, *, keepdims=False):
    """Returns the largest entry of a tensor, or of its last axis if `keepdims`.

    It returns `initial` if no entry is larger.
    """
    return ops.max(x, axis=-1 if keepdims else None, keepdims=keepdims, initial=initial)


def track_variables(layer):
    """Registers the variables of a layer with PyTorch, in place of those that it no longer has."""


def write_slice(x, update, start, axis):
    """Returns `x` whose entries of an axis, starting at `start`, are replaced by `update`.

    It is `ops.slice_update`, except for TensorFlow without XLA: there, its operation,
    `XlaDynamicUpdateSlice`, is compiled again for every new shape.

    Args:
        x: a tensor.
        update: a tensor of the same shape, except for the axis.
        start: an int or a scalar tensor. It is limited, so that the update fits into `x`.
        axis: the axis, at least 0.
    """
    starts = (start if each == axis else 0 for each in range(len(x.shape)))
    return ops.slice_update(x, start_indices(*starts), update)


def add_at(total, terms, start):
    """Returns `[B, N, T, X]` plus terms for the positions at and after `start`, an int.

    On PyTorch, it changes `total`.
    """
    after = ops.shape(total)[2] - start - ops.shape(terms)[2]
    return total + ops.pad(terms, [(0, 0), (0, 0), (start, after), (0, 0)])


def take_rows(x, index):
    """Returns `x[index]` for an index that is not negative."""
    return ops.take(x, index, axis=0)


def take_beams(x, index):
    """Returns `x[b, index[b, i]]` `[B, n, ...]` for x `[B, k, ...]` and int index `[B, n]`."""
    index = ops.reshape(index, (*ops.shape(index), *(1 for _ in x.shape[2:])))
    return ops.take_along_axis(x, index, axis=1)


def take_distinct_rows(x, indices, inverse_indices):
    """Returns the rows of a matrix at distinct indices, zeros for the index -1.

    Args:
        x: `[R, H]`, R at least 1.
        indices: int `[P]`, the row of `x` for every output row, or -1.
        inverse_indices: int `[R]`, the output row of every row of `x`, or -1. TensorFlow's gradient
            uses it.

    Returns:
        `[P, H]`.
    """
    rows = ops.take(x, ops.maximum(indices, 0), axis=0)
    # Zeros have the dtype of `x`, because JAX promotes a bool and an int to an int.
    return ops.where(indices[:, None] < 0, ops.zeros((), dtype=x.dtype), rows)


def take_table_rows(table, ids):
    """Returns the table row of each pair.

    Args:
        table: `[R, H]` or `[N, R, H]`.
        ids: int `[T, S]`.

    Returns:
        `[T, S, H]` or `[N, T, S, H]`.
    """
    # The gradient sums over all pairs with the same id.
    rows = ops.take(ops.cast(table, accumulation_dtype(table.dtype)), ids, axis=-2)
    return ops.cast(rows, table.dtype)


def segment_sum(values, ids, num_segments):
    """Returns the sums of the values with the same id, `[num_segments]`.

    Args:
        values: a tensor of rank 1.
        ids: an integer tensor of the same shape, with values in `[0, num_segments)`.
        num_segments: number of ids, an int, a scalar tensor, or a symbolic length of JAX.
    """
    return ops.segment_sum(values, ids, num_segments=num_segments)


def top_k(x, k):
    """Returns (values, indices) of the k largest entries of each row, in descending order.

    Equal entries are in the order of their indices.

    Args:
        x: `[B, n]`.
        k: an int, or on TensorFlow a scalar tensor, at most n.

    Returns:
        (values `[B, k]`, their indices, int32 `[B, k]`).

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.backend import top_k
    >>> values, indices = top_k(ops.convert_to_tensor([[1.0, 3.0, 1.0, 1.0]]), 3)
    >>> ops.convert_to_numpy(indices).tolist()
    [[1, 0, 2]]
    """
    values, indices = ops.top_k(x, k)
    return values, ops.cast(indices, "int32")


def project(x, kernel, bias, contracted):
    """Returns the product of a tensor and a kernel of any rank, as one matrix product.

    Args:
        x: `[B, length, ...]`.
        kernel: its first axes are the axes of `x` after the first two.
        bias: its axes are the other axes of the kernel, or None.
        contracted: number of axes of the kernel that are axes of `x`.

    Returns:
        `[B, length, ...]` with the other axes of the kernel.
    """
    rows, columns = math.prod(kernel.shape[:contracted]), kernel.shape[contracted:]
    outer = ops.shape(x)[:2]
    if contracted > 1:
        x = ops.reshape(x, (*outer, rows))
    x = ops.matmul(x, ops.reshape(kernel, (rows, math.prod(columns))))
    if bias is not None:
        x = ops.add(x, ops.reshape(bias, (-1,)))
    return ops.reshape(x, (*outer, *columns)) if len(columns) > 1 else x


def matmul(x, y):
    """Returns `x @ y` of tensors of one dtype, in that dtype."""
    return ops.matmul(x, y)


def matmul_transposed(x, y):
    """Returns `x·yᵀ` over the last two axes."""
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def matmul_matrix(x, matrix):
    """Returns `[B, N, T, X]` times a matrix `[X, Y]`: `[B, N, T, Y]`."""
    # In rank 2. With one head, tf.matmul of `[B, 1, T, X]` and `[X, Y]` corrupts memory in
    # TensorFlow 2.21 with oneDNN (tensorflow/tensorflow#117700). XLA's gradient of a product of
    # rank 4 copies its inputs.
    batch, heads, length, width = ops.shape(x)
    product = ops.matmul(ops.reshape(x, (batch * heads * length, width)), matrix)
    return ops.reshape(product, (batch, heads, length, ops.shape(matrix)[-1]))


def fill_masked(x, mask, number):
    """Returns `x` where a mask is True, and elsewhere a number, in the dtype of `x`."""
    return ops.where(mask, x, ops.cast(number, x.dtype))


def weights_and_log_sums(scores):
    """Returns (softmax of scores, log-sum-exp of the scores, sum of the weights).

    The sum is 1, or 0 for fully masked queries, whose weights are 0. Scores have an accumulation
    dtype, and `MASKED_SCORE` for masked entries.
    """
    maximum = largest(scores, MASKED_SCORE, keepdims=True)
    exponentials = ops.exp(scores - maximum)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    has_valid_key = maximum > MASKED_SCORE / 10
    # +2**100, so that rematerialized weights exp(score - log_sum) are 0.
    log_sums = fill_masked(maximum + ops.log(total), has_valid_key, -MASKED_SCORE)
    has_valid_key = ops.cast(has_valid_key, scores.dtype)
    return exponentials * (has_valid_key / total), log_sums, has_valid_key


def softmax(scores, mask):
    """Returns the softmax over the unmasked entries of the last axis, zero elsewhere.

    Args:
        scores: `[.., S]`.
        mask: bool, broadcasts to `scores`, True = attend, or None.
    """
    if mask is not None:
        scores = fill_masked(scores, mask, MASKED_SCORE)
    # A length that PyTorch traces is a tensor: the branch would hold for the traced length only.
    if isinstance(scores.shape[-1], int) and scores.shape[-1] == 1:
        # Keras warns about a softmax over a single entry, which is intended here.
        weights = ops.exp(scores - scores)
    else:
        weights = ops.softmax(scores, axis=-1)
    return weights if mask is None else ops.where(mask, weights, ops.zeros_like(weights))


def layer_normalization(inputs, gamma, beta, axes, epsilon):
    """Returns normalized inputs where Keras's operations are slower or fail, otherwise None.

    Args:
        inputs: `[..., D]`.
        gamma: scale of the normalized axes, or None.
        beta: offset of the normalized axes, or None.
        axes: sorted list of the normalized axes, not negative.
        epsilon: added to the variance.
    """
    return None


def traced_seeds(generator):
    """Returns an object whose `next()` is that of a keras.random.SeedGenerator.

    torch.compile can trace it.
    """
    return generator


def draw_seed():
    """Returns a seed for `dropout_factors` from the backend's own random number generator.

    Only PyTorch has one: `torch.manual_seed` sets it, and `torch.utils.checkpoint` restores it.
    """
    raise ValueError(
        f"Expected a `seed_generator`, because the backend is {keras.backend.backend()!r}. Only "
        "PyTorch has a random number generator of its own. Pass a keras.random.SeedGenerator."
    )


def dropout_factors(shape, rate, seed, dtype, block=None):
    """Returns random factors: 0 with probability `rate`, otherwise 1 / (1 - rate).

    Args:
        shape: ints; on TensorFlow also scalar tensors, or a tensor `[rank]`.
        rate: in `[0, 1)`, on TensorFlow rounded to 1 / 65,536.
        seed: a seed drawn from a keras.random.SeedGenerator.
        dtype: dtype of the factors.
        block: number of a block, an int or a scalar tensor. Each number gives different factors.
            Default: None, no blocks.
    """
    uniform = keras.random.uniform(shape, seed=_DrawnSeed(seed, block))
    return ops.cast(uniform >= rate, dtype) / (1 - rate)


class _DrawnSeed(keras.random.SeedGenerator):
    """Passes a given seed to keras.random.

    It does not call the base class's `__init__`, which would create a variable.
    """

    def __init__(self, seed, block):
        if block is not None:
            # With an odd factor, the first entry differs for all blocks (modulo 2**32). Successive
            # calls differ in the second entry.
            step = ops.cast(block, seed.dtype) * ops.cast(0x1E3779B1, seed.dtype)
            seed = seed + ops.stack([step, ops.zeros_like(step)])
        self._seed = seed

    def next(self, ordered=True):
        return self._seed
