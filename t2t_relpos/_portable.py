"""Detects whether the current code must use standard operations only, as converters require."""

import contextlib
import contextvars

import keras
from keras import ops

from t2t_relpos._keras_compat import running_export_format

# Formats of `keras.Model.export` whose converters support standard operations only.
FORMATS = ("onnx", "litert", "openvino", "torch")

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
        from t2t_relpos import _torch_export

        return _torch_export.is_exporting()
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
