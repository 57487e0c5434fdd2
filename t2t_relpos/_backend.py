"""What depends on the Keras backend: devices, tensors, exports, and compiled functions."""

import contextlib
import contextvars
import functools

import keras
from keras import ops

from t2t_relpos._keras_compat import running_export_format, torch_device

# Formats of `keras.Model.export` whose converters support standard operations only.
FORMATS = ("onnx", "litert", "openvino", "torch")

_ENTERED = contextvars.ContextVar("portable", default=False)


def is_compiled_by_xla():
    """Returns whether TensorFlow is tracing a graph for XLA."""
    if keras.backend.backend() != "tensorflow":
        return False
    from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

    return tensorflow_ops.is_compiled_by_xla()


def is_tensorflow_without_xla():
    """Returns whether Keras runs on TensorFlow and the current code is not compiled by XLA.

    XLA requires loops to keep the shapes of their variables.
    """
    return keras.backend.backend() == "tensorflow" and not is_compiled_by_xla()


def is_compiled(tensor):
    """Returns whether XLA or `jax.jit` compiles the code that computes a tensor."""
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(tensor, jax.core.Tracer)
    return is_compiled_by_xla()


def device():
    """Returns the kind of device that the backend computes on: "cpu", "gpu" or "tpu"."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

        return tensorflow_ops.device()
    if backend == "jax":
        import jax

        # `keras.device("cpu:0")` changes the default device, which may also be a name.
        default = jax.config.jax_default_device
        kind = getattr(default, "platform", default) or jax.default_backend()
        return kind if kind in ("cpu", "tpu") else "gpu"
    # Keras puts tensors on an accelerator if there is one. Shape inference uses the device "meta".
    return "cpu" if torch_device().partition(":")[0] in ("cpu", "meta") else "gpu"


def as_tensor(x):
    """Converts a NumPy array, a variable or a tensor-like object of the backend to a tensor.

    Returns None for None. In contrast to keras.ops.convert_to_tensor, it also converts a
    tf.Variable.
    """
    if x is None:
        return None
    x = ops.convert_to_tensor(x)
    if keras.backend.backend() != "tensorflow":
        return x
    from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

    return tensorflow_ops.as_tensor(x)


def is_transformed_by_torch():
    """Returns whether the current code runs in a transform of `torch.func`, such as `vmap`."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return torch._C._are_functorch_transforms_active()


def custom_gradient(function, *tensors):
    """Returns the outputs of `function`, whose gradient is its own.

    In transforms of `torch.func`, the gradient is PyTorch's: they don't support that of Keras.

    Args:
        function: as for `keras.ops.custom_gradient`.
        *tensors: its arguments.
    """
    if is_transformed_by_torch():
        return function(*tensors)[0]
    if keras.backend.backend() == "jax":
        tensors = _vary_over_same_axes(tensors)
    return ops.custom_gradient(function)(*tensors)


def _vary_over_same_axes(tensors):
    """Returns tensors of JAX that vary over the same axes of a mesh.

    In `jax.shard_map`, the types of gradients and of the state of a loop contain these axes.
    """
    import jax

    axes = [_varying_axes(jax.typeof(x)) for x in tensors]
    missing = [tuple(frozenset().union(*axes) - own) for own in axes]
    if hasattr(jax.lax, "pcast"):
        vary = functools.partial(jax.lax.pcast, to="varying")
    else:  # before JAX 0.8
        vary = jax.lax.pvary
    return [vary(x, names) if names else x for x, names in zip(tensors, missing)]


def _varying_axes(kind):
    """Returns the axes of a mesh over which a tensor of a JAX type varies."""
    if hasattr(kind, "manual_axis_type"):  # since JAX 0.10
        return kind.manual_axis_type.varying
    return kind.vma


def zeros_like_results(shape, dtype, tensor):
    """Returns zeros as the first state of a loop over results that depend on a tensor."""
    zeros = ops.zeros(shape, dtype=dtype)
    if keras.backend.backend() == "jax":
        return _vary_over_same_axes([zeros, tensor])[0]
    return zeros


def needs_torch_gradient(tensors, d_outputs):
    """Returns whether a custom gradient of PyTorch must be replaced by `torch_gradients`.

    It must if PyTorch records the operations on one of the tensors, for a second derivative, or if
    there is a batch of gradients of the outputs, as with `is_grads_batched=True`.
    """
    import torch

    # A slice of a variable requires a gradient even while PyTorch records nothing.
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return is_recorded or torch._C._functorch.is_legacy_batchedtensor(d_outputs)


def torch_gradients(function, tensors, d_outputs):
    """Returns a dict of PyTorch's gradients of `function(tensors)`, which can be differentiated.

    Args:
        function: a function of a dict of tensors.
        tensors: the dict. One of them may depend on another one: the gradients are partial.
        d_outputs: gradient of the result.
    """
    import torch

    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        copies = {name: x.view_as(x) for name, x in tensors.items()}
        outputs = function(copies)
    copies = {name: x for name, x in copies.items() if x.requires_grad}
    gradients = torch.autograd.grad(
        outputs, list(copies.values()), d_outputs, create_graph=create_graph
    )
    return dict(zip(copies, gradients))


def accumulation_dtype(dtype):
    """Returns the name of the dtype in which sums are computed: float32, or float64."""
    # `keras.backend.result_type` would return float32 for float64 on JAX and PyTorch.
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def one_or_nan(condition, dtype):
    """Returns 1 where a condition holds, otherwise NaN, without a NaN constant.

    `tf.debugging.enable_check_numerics` raises an error for a constant that is not finite.
    """
    sign = ops.where(condition, ops.ones([], dtype=dtype), ops.cast(-1, dtype))
    return ops.sqrt(sign)


def start_indices(*indices):
    """Returns the start indices of `ops.slice` and `ops.slice_update` with one dtype, int32.

    JAX refuses indices of different dtypes. With JAX_ENABLE_X64, those of a loop are int64.

    Args:
        *indices: ints, integer tensors, or symbolic lengths of JAX.
    """
    if keras.backend.backend() == "jax":
        return tuple(ops.convert_to_tensor(index, dtype="int32") for index in indices)
    return tuple(map(as_size, indices))


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
    if is_tensorflow_without_xla():
        from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

        return tensorflow_ops.write_slice(x, update, start, axis)
    if keras.backend.backend() == "torch" and isinstance(start, int):
        import torch

        # The assignment of `ops.slice_update` fails if `torch.func.vmap` has a batch of updates.
        return torch.slice_scatter(x, update, axis, start, start + update.shape[axis])
    indices = [0] * len(x.shape)
    indices[axis] = start
    return ops.slice_update(x, start_indices(*indices), update)


def segment_sum(values, ids, num_segments):
    """Returns the sums of the values with the same id, `[num_segments]`.

    Args:
        values: a tensor of rank 1.
        ids: an integer tensor of the same shape, with values in `[0, num_segments)`.
        num_segments: number of ids, an int, a scalar tensor, or a symbolic length of JAX.
    """
    if keras.backend.backend() != "torch":
        return ops.segment_sum(values, ids, num_segments=num_segments)
    # In that of Keras 3.15, shapes depend on values, which are unknown for fake tensors.
    wide = ops.cast(values, accumulation_dtype(values.dtype))
    return ops.cast(wide.new_zeros(num_segments).index_add(0, ids, wide), values.dtype)


def as_size(x):
    """Returns a size as an int32 tensor if it is a tensor, otherwise unchanged."""
    return ops.cast(x, "int32") if ops.is_tensor(x) else x


def clip_size(x, low, high):
    """Returns a size limited to `[low, high]`.

    The result is an int if all arguments are ints. Otherwise it is a scalar tensor or, on JAX, a
    symbolic length.
    """
    if all(isinstance(n, int) for n in (x, low, high)):
        return max(low, min(high, x))
    if keras.backend.backend() == "jax" and not any(map(ops.is_tensor, (x, low, high))):
        import jax

        return jax.core.max_dim(low, jax.core.min_dim(high, x))
    return ops.maximum(low, ops.minimum(high, x))


@contextlib.contextmanager
def portable():
    """Returns a context manager in which layers use standard operations only.

    Use it with converters other than `keras.Model.export`, for example `tf.lite.TFLiteConverter`.
    `keras.Model.export` does not need it. Within the context, memory is quadratic in length.

    Example:
    >>> from t2t_relpos.attention import explain, portable
    >>> with portable():
    ...     explain(5000).chosen
    'band'
    """
    token = _ENTERED.set(True)
    try:
        yield
    finally:
        _ENTERED.reset(token)


def is_portable():
    """Returns whether the current code must use standard operations only.

    The result is True within `portable` and within `keras.Model.export` to one of `FORMATS`. On
    PyTorch, it is also True within `torch.onnx.export` and `torch.export.export`.
    """
    if _ENTERED.get():
        return True
    backend = keras.backend.backend()
    if backend == "torch":
        # torch.compile can't trace a search of the call stack.
        import torch

        return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
    if backend == "tensorflow":
        # Eager calls skip the search.
        from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

        if not tensorflow_ops.is_tracing():
            return False
    return running_export_format() in FORMATS


def arange(length):
    """Returns int32 `[length]`: 0, 1, 2, ...

    Args:
        length: an int, a scalar tensor, or a symbolic length of JAX.
    """
    if keras.backend.backend() == "jax" and is_portable():
        # jax2onnx 0.17 can convert neither `arange` of a symbolic length nor one without a start.
        return ops.cumsum(ops.ones((length,), dtype="int32")) - 1
    return ops.arange(length, dtype="int32")


def largest(x, initial, *, keepdims=False):
    """Returns the largest entry of a tensor, or of its last axis if `keepdims`.

    It returns `initial` if no entry is larger.
    """
    axis = -1 if keepdims else None
    if keras.backend.backend() != "torch":
        return ops.max(x, axis=axis, keepdims=keepdims, initial=initial)
    # With `initial`, Keras 3.15 mixes tensors of the GPU and of the CPU.
    if 0 in x.shape:
        return ops.full((*x.shape[:-1], 1) if keepdims else (), initial, x.dtype)
    return ops.maximum(ops.max(x, axis=axis, keepdims=keepdims), initial)


def check_exported_lengths(layer, *sizes):
    """Raises ValueError if JAX exports a layer with symbolic sizes to one of `FORMATS`.

    Args:
        layer: name of the layer, for the error.
        *sizes: batch size and lengths, ints or symbolic lengths of JAX.

    Raises:
        ValueError: if a size is symbolic, because jax2onnx 0.17 can't convert the reshapes of such
            a layer.
    """
    is_known = all(isinstance(size, int) for size in sizes)
    if keras.backend.backend() == "jax" and not is_known and is_portable():
        raise ValueError(
            f"{layer} can be exported from JAX for a fixed batch size and length only. Pass "
            "`input_signature` with fixed shapes to `export`, or export on TensorFlow or PyTorch. "
            f"Received: sizes {sizes}."
        )


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
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # XLA needs the shapes that a relaxed signature would hide.
        return tf.function(
            function, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False
        )
    if backend == "torch":
        import torch

        return torch.no_grad()(function)
    return _jitted(model, function) if jit_compile else function


def _jitted(model, function):
    import jax

    @jax.jit
    def compiled(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values))):
            return function(*arguments)

    return lambda *arguments: compiled([v.value for v in model.variables], *arguments)
