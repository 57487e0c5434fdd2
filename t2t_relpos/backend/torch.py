"""The functions of `t2t_relpos.backend` that differ on PyTorch."""

import torch
from keras import backend, ops

from t2t_relpos.backend import keras_ops
from t2t_relpos.backend import torch_flash as flash_kernel
from t2t_relpos.backend.keras_private import changed

try:
    from keras.src.backend.torch.core import get_device
except ImportError as error:
    raise changed("keras.src.backend.torch.core.get_device") from error

__all__ = [
    "HAS_XLA",
    "add_at",
    "compile_function",
    "device",
    "flash_kernel",
    "is_portable",
    "largest",
    "layer_normalization",
    "records_gradients",
    "top_k",
]

HAS_XLA = False


def device():
    # Keras puts tensors on an accelerator if there is one. Shape inference uses the device "meta".
    return "cpu" if str(get_device()).partition(":")[0] in ("cpu", "meta") else "gpu"


def is_portable():
    # torch.compile can't trace a search of the call stack.
    is_exporting = torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
    return keras_ops.is_in_portable() or is_exporting


def compile_function(model, function, *, jit_compile):
    return torch.no_grad()(function)


def records_gradients(tensors):
    # A slice of a variable requires a gradient even while PyTorch records nothing.
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def largest(x, initial, *, keepdims=False):
    # With `initial`, Keras 3.15 mixes tensors of the GPU and of the CPU.
    if 0 in x.shape:
        return ops.full((*x.shape[:-1], 1) if keepdims else (), initial, x.dtype)
    return ops.maximum(ops.max(x, axis=-1 if keepdims else None, keepdims=keepdims), initial)


def add_at(total, terms, start):
    total[:, :, start : start + terms.shape[2]] += terms
    return total


def top_k(x, k):
    # torch.topk does not keep the order of equal entries.
    x = ops.convert_to_tensor(x)
    smallest = ops.top_k(x, k)[0][:, -1:]
    size = x.shape[-1]
    # Distinct ranks: entries above the smallest selected one, then entries equal to it by index.
    rank_by_index = size - ops.arange(size, dtype="int32")
    rank = ops.where(x > smallest, rank_by_index + size, ops.where(x == smallest, rank_by_index, 0))
    indices = ops.top_k(rank, k)[1]
    values = ops.take_along_axis(x, indices, axis=-1)
    order = ops.argsort(-values, axis=-1)
    values, indices = (ops.take_along_axis(each, order, axis=-1) for each in (values, indices))
    return values, ops.cast(indices, "int32")


def layer_normalization(inputs, gamma, beta, axes, epsilon):
    # PyTorch can't export its layer normalization to ONNX if a length is unknown, and it
    # normalizes the last axes only.
    rank = len(inputs.shape)
    if axes == list(range(rank))[-len(axes) :] and not is_portable():
        return None
    x = ops.cast(inputs, backend.result_type(inputs.dtype, "float32"))
    centred = x - ops.mean(x, axis=axes, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=axes, keepdims=True)
    outputs = centred * ops.rsqrt(variance + epsilon)
    sizes = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    if gamma is not None:
        outputs = outputs * ops.reshape(gamma, sizes)
    return outputs if beta is None else outputs + ops.reshape(beta, sizes)
