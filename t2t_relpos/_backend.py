"""Properties of the Keras backend on which implementations depend."""

import keras
from keras import ops


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
        from t2t_relpos import _jax_backend

        return _jax_backend.device()
    # Keras puts tensors on an accelerator if there is one. Shape inference uses the device "meta".
    return "cpu" if ops.convert_to_tensor(0).device.type in ("cpu", "meta") else "gpu"


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
        from t2t_relpos import _jax_backend

        return _jax_backend.clip_symbol(x, low, high)
    return ops.maximum(low, ops.minimum(high, x))
