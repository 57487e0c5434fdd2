"""The functions of `t2t_relpos.backend` that differ on JAX."""

import functools

import jax
import keras
from keras import ops

from t2t_relpos.backend import jax_flash as flash_kernel
from t2t_relpos.backend import keras_ops
from t2t_relpos.backend.keras_private import running_export_format

__all__ = [
    "LARGE_INDEX_DTYPE",
    "can_be_read",
    "clip_size",
    "compile_function",
    "custom_gradient",
    "device",
    "flash_kernel",
    "is_compiled",
    "is_portable",
    "start_indices",
    "write_slice",
    "zeros_like_results",
]

# JAX has no int64 by default.
LARGE_INDEX_DTYPE = "int32"


def device():
    # `keras.device("cpu:0")` changes the default device, which may also be a name.
    default = jax.config.jax_default_device
    kind = getattr(default, "platform", default) or jax.default_backend()
    return kind if kind in ("cpu", "tpu") else "gpu"


def is_compiled(tensor):
    return isinstance(tensor, jax.core.Tracer)


def can_be_read(values):
    return not is_compiled(values) and getattr(values, "is_fully_addressable", True)


def is_portable():
    format = running_export_format()
    if format in keras_ops.FORMATS:
        raise ValueError(
            f"Expected an export to {format} from TensorFlow or PyTorch. Received: an export from "
            'JAX. Write the model with `model.save("model.keras")`. The weights are the same on '
            'all backends. Then run: KERAS_BACKEND=tensorflow python -c "import keras, t2t_relpos; '
            f"keras.saving.load_model('model.keras').export('model.{format}', format='{format}')\""
        )
    return keras_ops.is_in_portable()


def compile_function(model, function, *, jit_compile):
    if not jit_compile:
        return function

    @jax.jit
    def compiled(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values))):
            return function(*arguments)

    return lambda *arguments: compiled([v.value for v in model.variables], *arguments)


def custom_gradient(forward, backward, plain, tensors):
    varying = dict(zip(tensors, _vary_over_same_axes(list(tensors.values()))))
    return keras_ops.custom_gradient(forward, backward, plain, varying)


def zeros_like_results(shape, dtype, tensor):
    zeros = keras_ops.zeros_like_results(shape, dtype, tensor)
    return _vary_over_same_axes([zeros, tensor])[0]


def _vary_over_same_axes(tensors):
    """Returns tensors that vary over the same axes of a mesh.

    In `jax.shard_map`, the types of gradients and of the state of a loop contain these axes.
    """
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


def clip_size(x, low, high):
    if any(map(ops.is_tensor, (x, low, high))) or all(isinstance(n, int) for n in (x, low, high)):
        return keras_ops.clip_size(x, low, high)
    return jax.core.max_dim(low, jax.core.min_dim(high, x))


def start_indices(*indices):
    # JAX refuses indices of different dtypes. With JAX_ENABLE_X64, those of a loop are int64.
    return tuple(ops.convert_to_tensor(index, dtype="int32") for index in indices)


def write_slice(x, update, start, axis):
    starts = (start if each == axis else 0 for each in range(len(x.shape)))
    return ops.slice_update(x, start_indices(*starts), update)
