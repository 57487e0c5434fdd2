"""PyTorch's flash-attention kernels with their log-sum-exp, for attention without scaling.

`scaled_dot_product_attention` chooses among the same kernels. It does not return the log-sum-exp.
"""

import math

import torch

# Kernels on a GPU read 8 features at a time, rows of masks with 16 entries at a time, and store
# log-sum-exps in blocks of 32 queries.
FEATURES_BLOCK, ALIGNMENT, LOG_SUMS_BLOCK = 8, 16, 32
LARGEST_FLASH_DEPTH = 256


def has_kernel(query):
    """Returns whether queries are on a CPU or an NVIDIA GPU. Shape inference uses "meta"."""
    device = query.device
    return device.type in ("cpu", "meta") or (device.type == "cuda" and torch.version.hip is None)


def supports(query, depth):
    """Returns whether this GPU supports the dtype of queries `[B, N, T, H]`."""
    is_new_type = query.device.type == "cuda" and query.dtype == torch.bfloat16
    return not is_new_type or _is_recent(query.device)


def _is_recent(device):
    """Returns whether a GPU has the architecture Ampere or a later one."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def has_masks(query, depth):
    """Returns whether masks of keys are passed to the kernel, and not as features.

    The kernel without masks takes 0.5 to 0.8 times as long, with the features.

    Args:
        query: queries `[B, N, T, H]`.
        depth: H and the number of features.
    """
    return query.device.type != "cuda" or not _has_flash(query, depth)


def forward(query, key, value, key_mask, is_causal):
    """Returns (outputs, log-sum-exp, state) of attention.

    Args:
        query: `[B, N, T, H]`, T at least 1.
        key: `[B, N, S, H]`.
        value: `[B, N, S, H]`.
        key_mask: bool `[B, 1 or N, S]`, True = attend, or None.
        is_causal: whether query i attends to keys 0 to i only. S is then T.

    Returns:
        (outputs `[B, N, T, H]`, log-sum-exp of the scores `[B, N, T]`, further results for
        `backward`). Both are arbitrary for queries whose keys are all masked.
    """
    return _kernel(query, key_mask).forward(query, key, value, key_mask, is_causal)


def backward(query, key, value, key_mask, results, d_outputs, is_causal):
    """Returns the gradients of queries, keys and values.

    Args:
        query: as in `forward`.
        key: as in `forward`.
        value: as in `forward`.
        key_mask: as in `forward`.
        results: outputs, log-sum-exp and state. Queries without keys have a large log-sum-exp.
        d_outputs: gradient of the outputs `[B, N, T, H]`.
        is_causal: as in `forward`.
    """
    tensors = query, key, value, key_mask
    return _kernel(query, key_mask).backward(*tensors, results, d_outputs, is_causal)


def _kernel(query, key_mask):
    """Returns the kernel for the device, dtype and mask."""
    if query.device.type != "cuda":
        return _OnCPU
    return _Flash if key_mask is None and _has_flash(query, query.shape[-1]) else _MemoryEfficient


def _has_flash(query, depth):
    """Returns whether there is a flash-attention kernel for a GPU, a dtype and a depth."""
    has_flash = query.dtype in (torch.bfloat16, torch.float16) and depth <= LARGEST_FLASH_DEPTH
    has_flash = has_flash and _is_recent(query.device)
    return has_flash and torch.backends.cuda.is_flash_attention_available()


def _readable(*tensors, block=1):
    """Returns tensors `[B, N, T, H]`, with copies of those whose strides a kernel can't read.

    The features of a vector must be next to each other. Vectors of a head must not overlap, and
    start at multiples of `block` features.
    """
    return [x if _is_readable(x, block) else _copy(x) for x in tensors]


def _is_readable(x, block):
    *_, row, feature = x.stride()
    starts = x.storage_offset(), *x.stride()[:-1]
    return feature == 1 and row >= x.shape[-1] and all(start % block == 0 for start in starts)


def _copy(x):
    # `x.contiguous()` is `x` itself where only its start is not at a multiple.
    return x.clone(memory_format=torch.contiguous_format)


class _OnCPU:
    """The kernel for CPUs.

    It does not check strides. It reads vectors as if their features were next to each other, with
    any other strides. BLAS multiplies them, whose vectors do not overlap. Gradients of outputs and
    log-sum-exps may have any strides, and masks in some versions only.
    """

    @staticmethod
    def forward(query, key, value, key_mask, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        tensors, bias = _readable(query, key, value), _bias(key_mask, query)
        return (*kernel(*tensors, 0.0, is_causal, attn_mask=bias, scale=1.0), None)

    @staticmethod
    def backward(query, key, value, key_mask, results, d_outputs, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        outputs, log_sums, _ = results
        tensors = _readable(d_outputs, query, key, value, outputs)
        bias = _bias(key_mask, query)
        return kernel(*tensors, log_sums, 0.0, is_causal, attn_mask=bias, scale=1.0)


class _Flash:
    """The flash-attention kernel for GPUs: 16-bit types, no mask.

    It raises an error unless the features of vectors are next to each other, and does not check
    that it can read 16 bytes at a time. It ignores the strides of log-sum-exps.
    """

    @staticmethod
    def forward(query, key, value, key_mask, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention
        tensors = _readable(query, key, value, block=FEATURES_BLOCK)
        outputs, log_sums, *state, _ = kernel(*tensors, 0.0, is_causal, scale=1.0)
        return outputs, log_sums, state

    @staticmethod
    def backward(query, key, value, key_mask, results, d_outputs, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_backward
        outputs, log_sums, (*lengths, seed, offset) = results
        tensors = _readable(d_outputs, query, key, value, outputs, block=FEATURES_BLOCK)
        tensors.append(log_sums.contiguous())
        return kernel(*tensors, *lengths, 0.0, is_causal, seed, offset, scale=1.0)


class _MemoryEfficient:
    """The memory-efficient kernel for GPUs: also float32 and masks.

    It raises an error unless the features of vectors are next to each other, and does not check
    that vectors start where it can read 16 bytes at a time. In 16-bit types, its gradient reads
    outputs as `[B, T, N, H]` without gaps, whatever their strides.
    """

    @staticmethod
    def forward(query, key, value, key_mask, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        tensors = _readable(query, key, value, block=FEATURES_BLOCK)
        bias = _aligned_bias(key_mask, query)
        outputs, log_sums, *state = kernel(*tensors, bias, True, 0.0, is_causal, scale=1.0)
        return outputs, log_sums[..., : query.shape[2]], state

    @staticmethod
    def backward(query, key, value, key_mask, results, d_outputs, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention_backward
        outputs, log_sums, state = results
        tensors = _readable(d_outputs, query, key, value, block=FEATURES_BLOCK)
        outputs = outputs.transpose(1, 2).contiguous().transpose(1, 2)
        log_sums = torch.nn.functional.pad(
            log_sums, (0, -log_sums.shape[-1] % LOG_SUMS_BLOCK), value=math.inf
        )
        bias, needed = _aligned_bias(key_mask, query), [True, True, True, False]
        tensors += [bias, outputs, log_sums.contiguous()]
        return kernel(*tensors, *state, 0.0, needed, is_causal, scale=1.0)[:3]


def _bias(key_mask, query):
    """Returns a mask as a term of the scores in the dtype of the queries, `[B, 1 or N, 1, S]`."""
    if key_mask is None:
        return None
    bias = torch.where(key_mask[:, :, None], 0.0, -math.inf).to(query.dtype)
    return bias.contiguous()


def _aligned_bias(key_mask, query):
    """Returns a mask as a term of the scores, `[B, N, T, S]` without copies, with aligned rows."""
    if key_mask is None:
        return None
    length = key_mask.shape[2]
    bias = torch.nn.functional.pad(_bias(key_mask, query), (0, -length % ALIGNMENT))
    return bias[..., :length].expand(*query.shape[:3], length)
