"""Functions of keras.ops that attention calls often, as direct calls of PyTorch.

The functions of keras.ops convert every argument, which starts further operations, and
torch.compile can't trace `keras.ops.pad`. A function here calls PyTorch directly if its first
argument is a tensor, or a list of them. All tensors must be on one device. For other arguments, and
for functions that are not defined here, keras.ops is called.
"""

import functools

import keras
import torch
from keras import ops

from t2t_relpos.backend.keras_private import changed

try:
    from keras.src.backend.torch.core import get_device
except ImportError as error:
    raise changed("keras.src.backend.torch.core.get_device") from error


def __getattr__(name):
    # Only the first time: later, the module has the attribute.
    return globals().setdefault(name, getattr(ops, name))


def _for_tensors(function):
    """Returns a function that calls keras.ops unless its arguments are tensors of PyTorch."""
    of_keras = getattr(ops, function.__name__)

    @functools.wraps(function)
    def run(x, *args, **kwargs):
        tensors = x if isinstance(x, (list, tuple)) else [x]
        is_native = tensors and all(map(torch.is_tensor, tensors))
        return (function if is_native else of_keras)(x, *args, **kwargs)

    return run


@_for_tensors
def broadcast_to(x, shape):
    return x.expand(shape)


@_for_tensors
def concatenate(xs, axis=0):
    return torch.cat(xs, axis)


def convert_to_tensor(x, dtype=None):
    tensor = x.value if isinstance(x, keras.Variable) else x
    # Keras starts an operation for the conversion to the device of the tensor.
    if dtype is None and isinstance(tensor, torch.Tensor) and is_default(tensor.device):
        return tensor
    return ops.convert_to_tensor(x, dtype)


def is_default(device):
    """Returns whether Keras puts new tensors on a device."""
    default = torch.device(get_device())
    if default.type == "cuda" and default.index is None:
        default = torch.device("cuda", torch.cuda.current_device())
    return device == default


@_for_tensors
def exp(x):
    return x.exp() if x.is_floating_point() else ops.exp(x)


@_for_tensors
def expand_dims(x, axis):
    if not isinstance(axis, int):
        return ops.expand_dims(x, axis)
    return x.unsqueeze(axis)


@_for_tensors
def flip(x, axis):
    return x.flip(axis)


@_for_tensors
def logical_and(x1, x2):
    return x1.logical_and(x2) if isinstance(x2, torch.Tensor) else ops.logical_and(x1, x2)


@_for_tensors
def min(x, axis, keepdims=False):
    return x.amin(axis, keepdim=keepdims)


@_for_tensors
def pad(x, pad_width):
    return torch.nn.functional.pad(x, [size for pair in reversed(pad_width) for size in pair])


@_for_tensors
def reshape(x, newshape):
    return x.reshape(newshape)


@_for_tensors
def split(x, indices, axis):
    # The gradient is one concatenation. That of slices is an addition for each.
    ends = [*indices, x.shape[axis]]
    return x.split([end - start for start, end in zip([0, *indices], ends)], axis)


@_for_tensors
def sum(x, axis=None, keepdims=False):
    if axis is None or not x.is_floating_point():
        return ops.sum(x, axis, keepdims)
    return x.sum(axis, keepdim=keepdims)


@_for_tensors
def swapaxes(x, axis1, axis2):
    return x.transpose(axis1, axis2)


@_for_tensors
def take(x, indices, axis):
    # No index is negative.
    if not isinstance(indices, torch.Tensor):
        return ops.take(x, indices, axis)
    return x.index_select(axis, indices.reshape(-1)).unflatten(axis, indices.shape)


@_for_tensors
def transpose(x, axes):
    return x.permute(axes)


@_for_tensors
def where(condition, x1, x2):
    is_native = isinstance(x1, torch.Tensor) and isinstance(x2, (torch.Tensor, int))
    if condition.dtype != torch.bool or not is_native:
        return ops.where(condition, x1, x2)
    return torch.where(condition, x1, x2)


@_for_tensors
def zeros_like(x):
    return torch.zeros_like(x)
