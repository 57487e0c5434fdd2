"""The functions of `t2t_relpos.backend` that differ on PyTorch."""

import contextlib
import functools
import importlib.metadata
import math
import os

import keras
import torch

from t2t_relpos.backend import keras_ops, torch_compiled
from t2t_relpos.backend import torch_flash as flash_kernel
from t2t_relpos.backend import torch_ops as ops
from t2t_relpos.backend.keras_ops import MASKED_SCORE
from t2t_relpos.backend.keras_private import changed, sublayers
from t2t_relpos.backend.torch_compiled import is_portable
from t2t_relpos.backend.torch_ops import get_device, is_default

if not hasattr(keras.layers.Layer, "_track_variables"):
    raise changed("_track_variables of keras.layers.Layer")

__all__ = [
    "HAS_XLA",
    "add_at",
    "as_tensor",
    "as_tensors",
    "can_be_read",
    "compile_function",
    "custom_gradient",
    "device",
    "draw_seed",
    "dropout_factors",
    "fill_masked",
    "flash_kernel",
    "fused_kernel",
    "has_fused_kernel",
    "is_portable",
    "is_transformed",
    "largest",
    "layer_normalization",
    "matmul",
    "matmul_matrix",
    "on_device_of_query",
    "ops",
    "project",
    "scaled_dot_product_attention",
    "segment_sum",
    "softmax",
    "take_table_rows",
    "top_k",
    "traced_seeds",
    "track_variables",
    "as_one_node",
    "weights_and_log_sums",
    "write_slice",
]

HAS_XLA = False
OLDEST_TRITON = 3, 6


def has_fused_kernel(query):
    device = query.device
    if device.type == "cuda":
        # Triton does not support older NVIDIA GPUs, and this kernel was not compiled for others.
        suits = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        suits = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return suits and _has_triton()


@functools.cache
def _has_triton():
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(map(int, version.split(".")[:2])) >= OLDEST_TRITON


def fused_kernel():
    # Triton is large, and not needed by other implementations.
    from t2t_relpos.backend import torch_fused

    return torch_fused


def device():
    # Keras puts tensors on an accelerator if there is one. Shape inference uses the device "meta".
    return "cpu" if str(get_device()).partition(":")[0] in ("cpu", "meta") else "gpu"


def on_device_of_query(function):
    @functools.wraps(function)
    def run(query, *args, **kwargs):
        with _device_scope(query):
            return function(query, *args, **kwargs)

    return run


def _device_scope(x):
    """Returns a context in which Keras puts new tensors on the device of `x`."""
    if not isinstance(x, torch.Tensor) or is_default(x.device):
        return contextlib.nullcontext()
    return keras.device(str(x.device))


def as_one_node(types):
    return torch_compiled.as_one_node(types, _device_scope)


def compile_function(model, function, *, jit_compile):
    return torch.no_grad()(function)


def is_transformed():
    return torch._C._are_functorch_transforms_active()


def can_be_read(values):
    if not ops.is_tensor(values):
        return True
    # A fake tensor, or one of another subclass, may have no values.
    is_plain = type(values) in (torch.Tensor, torch.nn.Parameter) and values.device.type == "cpu"
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return is_plain and not is_traced and not is_transformed()


def custom_gradient(forward, backward, plain, tensors):
    # Transforms of `torch.func` don't support a custom gradient.
    if is_transformed():
        return forward(tensors)[0]
    functions = forward, backward, plain
    return _CustomGradient.apply(functions, list(tensors), *tensors.values())


class _CustomGradient(torch.autograd.Function):
    """`keras.ops.custom_gradient`, for several outputs."""

    @staticmethod
    def forward(ctx, functions, names, *args):
        forward, *ctx.functions = functions
        ctx.names = names
        outputs, saved = forward(dict(zip(names, args)))
        leaves = keras.tree.flatten(saved)
        ctx.is_tensor = list(map(torch.is_tensor, leaves))
        # Saved results may be outputs. A reference from here to an output would be a cycle.
        ctx.others = keras.tree.map_structure(lambda x: None if torch.is_tensor(x) else x, saved)
        ctx.save_for_backward(*args, *filter(torch.is_tensor, leaves))
        return outputs

    @staticmethod
    def backward(ctx, *d_outputs):
        (backward, plain), names = ctx.functions, ctx.names
        # Once: non-reentrant checkpointing frees them after the first read.
        tensors = ctx.saved_tensors
        args, saved = tensors[: len(names)], iter(tensors[len(names) :])
        tensors = dict(zip(names, args))
        with _device_scope(d_outputs[0]):
            if _needs_recorded_gradient(args, d_outputs):
                gradients = _recorded_gradients(plain, tensors, d_outputs)
            else:
                others = zip(ctx.is_tensor, keras.tree.flatten(ctx.others))
                leaves = [next(saved) if is_tensor else x for is_tensor, x in others]
                saved = keras.tree.pack_sequence_as(ctx.others, leaves)
                gradients = backward(tensors, saved, d_outputs)
        return None, None, *(gradients.get(name) for name in names)


def scaled_dot_product_attention(tensors, mask, *, is_causal, plain):
    def attention(query, key, value):
        options = {"attn_mask": mask, "is_causal": is_causal, "scale": 1.0}
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)

    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors.values())
    is_traced = any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in tensors.values())
    if is_traced or not is_recorded:
        return attention(**tensors)

    # Kernels have no second derivatives, and don't take batches of gradients.
    def forward(tensors):
        with torch.enable_grad():
            copies = {name: x.detach().requires_grad_() for name, x in tensors.items()}
            outputs = attention(**copies)
        # Callers may change the outputs in place.
        return (outputs.detach().clone(),), (copies, outputs)

    def backward(tensors, saved, d_outputs):
        copies, outputs = saved
        gradients = torch.autograd.grad(
            [outputs], list(copies.values()), d_outputs, retain_graph=True
        )
        return dict(zip(copies, gradients))

    return custom_gradient(forward, backward, lambda xs: (plain(xs),), tensors)[0]


def _needs_recorded_gradient(tensors, d_outputs):
    """Returns whether a second derivative may be needed, or `d_outputs` is a batch of gradients.

    There is a batch with `is_grads_batched=True` of `torch.autograd.grad`.
    """
    # A slice of a variable requires a gradient even while PyTorch records nothing.
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return is_recorded or any(map(torch._C._functorch.is_legacy_batchedtensor, d_outputs))


def _recorded_gradients(function, tensors, d_outputs):
    """Returns a dict of PyTorch's gradients of `function(tensors)`, which can be differentiated.

    The forward pass is repeated, because PyTorch did not record it. Copies make the gradients
    partial even if one tensor depends on another one.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        copies = {name: x.view_as(x) for name, x in tensors.items()}
        outputs = function(copies)
    copies = {name: x for name, x in copies.items() if x.requires_grad}
    pairs = [(x, d_x) for x, d_x in zip(outputs, d_outputs) if x.requires_grad]
    gradients = torch.autograd.grad(
        [x for x, _ in pairs],
        list(copies.values()),
        [d_x for _, d_x in pairs],
        create_graph=create_graph,
        allow_unused=True,
    )
    return dict(zip(copies, gradients))


def project(x, kernel, bias, contracted):
    x = ops.convert_to_tensor(x)
    if x.dtype != kernel.dtype or (bias is not None and bias.dtype != kernel.dtype):
        return keras_ops.project(x, kernel, bias, contracted)
    # Product and bias in one launch, and no conversions as in `keras.ops`.
    outer, columns = x.shape[:2], kernel.shape[contracted:]
    matrix = kernel.reshape(-1, math.prod(columns))
    x = x.reshape(-1, matrix.shape[0])
    x = x @ matrix if bias is None else torch.addmm(bias.reshape(-1), x, matrix)
    return x.reshape(*outer, *columns)


def matmul(x, y):
    # `ops.matmul` multiplies float64 in float32.
    return torch.matmul(x, y)


def matmul_matrix(x, matrix):
    return matmul(x, matrix)


def track_variables(layer):
    for each in (layer, *sublayers(layer)):
        each._track_variables()


def fill_masked(x, mask, number):
    # `ops.where` would copy the number to the GPU.
    return torch.where(mask, x, number)


def weights_and_log_sums(scores):
    if 0 in scores.shape:
        return keras_ops.weights_and_log_sums(scores)
    maximum = largest(scores, MASKED_SCORE, keepdims=True)
    weights = scores.softmax(-1)
    has_valid_key = maximum > MASKED_SCORE / 10
    # The largest weight is exp(0) / total.
    log_sums = maximum - weights.amax(-1, keepdim=True).log()
    log_sums = fill_masked(log_sums, has_valid_key, -MASKED_SCORE)
    return weights * has_valid_key, log_sums, has_valid_key.to(scores.dtype)


def softmax(scores, mask):
    if 0 in scores.shape or is_portable() or not isinstance(scores, torch.Tensor):
        return keras_ops.softmax(scores, mask)
    if mask is None:
        return scores.softmax(-1)
    return fill_masked(scores, mask, MASKED_SCORE).softmax(-1) * mask


def as_tensor(x):
    return None if x is None else ops.convert_to_tensor(x)


def as_tensors(x, *others):
    x = as_tensor(x)
    return [x, *(None if y is None else ops.cast(as_tensor(y), x.dtype) for y in others)]


def take_table_rows(table, ids):
    if is_portable() or not isinstance(ids, torch.Tensor):
        return keras_ops.take_table_rows(table, ids)
    # The gradient sums over all pairs with the same id.
    wide = ops.cast(table, keras_ops.accumulation_dtype(table.dtype))
    rows = wide.index_select(-2, ids.reshape(-1)).unflatten(-2, ids.shape)
    return ops.cast(rows, table.dtype)


def write_slice(x, update, start, axis):
    if isinstance(start, int):
        # The assignment of `ops.slice_update` fails if `torch.func.vmap` has a batch of updates.
        x, update = ops.convert_to_tensor(x), ops.convert_to_tensor(update)
        return torch.slice_scatter(x, update, axis, start, start + update.shape[axis])
    return keras_ops.write_slice(x, update, start, axis)


def segment_sum(values, ids, num_segments):
    # `ops.segment_sum` of Keras 3.15 has shapes that depend on values, unknown for fake tensors.
    wide = ops.cast(values, keras_ops.accumulation_dtype(values.dtype))
    return ops.cast(wide.new_zeros(num_segments).index_add(0, ids, wide), values.dtype)


def largest(x, initial, *, keepdims=False):
    # With `initial`, Keras 3.15 mixes tensors of the GPU and of the CPU.
    if 0 in x.shape:
        return ops.full((*x.shape[:-1], 1) if keepdims else (), initial, x.dtype)
    return (x.amax(-1, keepdim=True) if keepdims else x.max()).clamp(min=initial)


def add_at(total, terms, start):
    total.narrow(2, start, terms.shape[2]).add_(terms)
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
    x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    centred = x - ops.mean(x, axis=axes, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=axes, keepdims=True)
    outputs = centred * ops.rsqrt(variance + epsilon)
    sizes = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    if gamma is not None:
        outputs = outputs * ops.reshape(gamma, sizes)
    return outputs if beta is None else outputs + ops.reshape(beta, sizes)


# Random numbers are a hash of a seed, as in counter-based generators. Those of Keras read the seed
# on the host, and torch.compile can't trace it.


class TracedSeeds:
    """The seeds of a keras.random.SeedGenerator, whose `next` torch.compile can't trace."""

    def __init__(self, generator):
        self._state = generator.state

    def next(self):
        seed = self._state.value * 1
        # Keras adds a NumPy array.
        self._state.assign(seed + torch.arange(2, dtype=seed.dtype, device=seed.device))
        return seed


traced_seeds = TracedSeeds


def draw_seed():
    return torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=get_device())


def dropout_factors(shape, rate, seed, dtype, block=None):
    first, second = seed.to(get_device(), torch.int32)
    if block is not None:
        first = first + block * 0x1E3779B1
    keys = _hash_in_own_kernel(_hash(_hash(first) + second) + _int32_range(3))
    rows = _int32_range(math.prod(shape[:-1])) + keys[0]
    rows = _hash_in_own_kernel(_hash(rows) ^ keys[1])
    columns = _hash_in_own_kernel(_int32_range(math.prod(shape[-1:])) + keys[2])
    numbers = _multiply_bits(rows[:, None] + columns).reshape(shape)
    # All int32 are equally likely.
    smallest = min(round((rate - 0.5) * 2**32), 2**31 - 1)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    return ops.cast(numbers >= smallest, dtype) * scale


def _int32_range(size):
    return torch.arange(size, dtype=torch.int32, device=get_device())


def _hash(x):
    """Returns a hash of int32: the permutation `lowbias32` of Chris Wellons."""
    x = _multiply_bits(x)
    return x ^ ((x >> 16) & 0xFFFF)


def _hash_in_own_kernel(x):
    """Returns a hash of int32 `[n]`.

    The cumulative sums of random numbers are as random. torch.compile makes a separate kernel
    for them: its time is exponential in the number of hashes of a kernel.
    """
    return torch.cumsum(_hash(x), 0, dtype=torch.int32)


def _multiply_bits(x):
    """Returns int32 whose high bits depend on all bits of `x`."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x846CA68B - 2**32
    return x
