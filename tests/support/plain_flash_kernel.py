"""A plain function with the arguments and results of a flash-attention kernel, in keras.ops.

It stands in for `t2t_relpos.backend.torch_flash`, also on backends without a kernel. As a kernel
does, it returns arbitrary results for queries whose keys are all masked.
"""

import dataclasses
import sys

from keras import ops

from t2t_relpos.attention import dispatch, flash
from t2t_relpos.backend import accumulation_dtype

ARBITRARY = 7.0
# Whether masks are passed to the functions, and not as features.
HAS_MASKS = True


def without_kernel(implementation):
    """Returns `flash` with the functions of this module in place of the kernel."""
    kernel = sys.modules[__name__]
    of_kernels = dispatch.HAS_FLASH_KERNEL, dispatch.SUITS_FLASH_KERNEL
    return dataclasses.replace(
        implementation,
        function=lambda call, sizes: flash.attend(call, sizes, kernel),
        requirements=tuple(x for x in implementation.requirements if x not in of_kernels),
    )


def has_masks(query, depth):
    return HAS_MASKS


def forward(query, key, value, key_mask, is_causal):
    dtype = query.dtype
    query, key, value = map(_accumulated, (query, key, value))
    scores, mask = _masked_scores(query, key, key_mask, is_causal)
    log_sums = ops.logsumexp(scores, axis=-1)
    outputs = ops.matmul(ops.exp(scores - log_sums[..., None]), value)
    has_key = ops.any(mask, axis=-1)
    outputs = ops.where(has_key[..., None], outputs, ARBITRARY)
    return ops.cast(outputs, dtype), ops.where(has_key, log_sums, ARBITRARY), ("state",)


def backward(query, key, value, key_mask, results, d_outputs, is_causal):
    outputs, log_sums, state = results
    assert state == ("state",)
    dtype = query.dtype
    query, key, value, outputs, d_outputs = map(
        _accumulated, (query, key, value, outputs, d_outputs)
    )
    scores, _ = _masked_scores(query, key, key_mask, is_causal)
    weights = ops.exp(scores - log_sums[..., None])
    d_weights = ops.matmul(d_outputs, _transpose(value))
    d_scores = weights * (d_weights - ops.sum(d_outputs * outputs, axis=-1, keepdims=True))
    gradients = (
        ops.matmul(d_scores, key),
        ops.matmul(_transpose(d_scores), query),
        ops.matmul(_transpose(weights), d_outputs),
    )
    return tuple(ops.cast(x, dtype) for x in gradients)


def _accumulated(x):
    """Casts to the dtype in which kernels compute sums."""
    return ops.cast(x, accumulation_dtype(x.dtype))


def _masked_scores(query, key, key_mask, is_causal):
    """Returns (scores `[B, N, T, S]`, mask that broadcasts to them)."""
    (*_, length_q, _), (*_, length_k, _) = query.shape, key.shape
    assert 0 not in (*query.shape, length_k), "kernels refuse empty tensors"
    assert length_q == length_k or not is_causal, "causal attention of kernels is square"
    mask = ops.ones((1, 1, length_q, length_k), dtype="bool")
    if is_causal:
        mask = ops.tril(mask)
    if key_mask is not None:
        mask = ops.logical_and(mask, key_mask[:, :, None])
    scores = ops.matmul(query, _transpose(key))
    return ops.where(mask, scores, ops.cast(-1e30, scores.dtype)), mask


def _transpose(x):
    return ops.swapaxes(x, -1, -2)
