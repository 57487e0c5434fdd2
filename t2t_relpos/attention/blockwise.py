"""Blockwise relative attention in keras.ops, with a custom gradient.

It is used on JAX and PyTorch, and on TensorFlow with XLA or an accelerator.

Softmax ignores a term that is equal for all keys of a query. Table rows are therefore stored as
differences from a reference row: the rightmost one, or the leftmost one if causal. Values add the
reference row once per query. The difference rows are nonzero in two regions:

- the band: keys at distances from -(K - 1) to K - 1 (to 0 if causal). For a block of queries they
  are in a window of consecutive keys, which `skew.expand_ids` and `skew.sum_by_id` handle;
- the left tail, if bidirectional: all keys before the window share relative id 0.

There are two forms. The unrolled form reads a static slice of keys for each block, and saves the
weights. The scanned form loops over the blocks and rematerializes the weights: memory is linear in
length.

Shapes: C queries of a block; L ids without the reference row (2K, or K if causal).
"""

import keras
from keras import ops

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos.attention.block_layout import make_segments
from t2t_relpos.attention.block_passes import backward, forward
from t2t_relpos.attention.block_scores import Settings, Tensors


def attend(call, sizes, *, unrolled):
    """Returns the outputs `[B, N, T, Hv]`.

    Args:
        call: an `AttentionCall`.
        sizes: a `BlockSizes`.
        unrolled: whether to use the unrolled form, which saves the weights for the gradient,
            instead of the scanned form, which rematerializes them.
    """
    length_q, length_k = call.length_q, call.length_k
    tensors, reference, max_relative_position = _prepare(call)
    offset = call.query_offset if isinstance(call.query_offset, int) else None
    settings = Settings(
        max_relative_position=max_relative_position,
        causal=call.causal,
        query_offset=offset,
        needs_totals=call.dropout is not None
        or tensors.key_mask is not None
        or tensors.mask is not None
        or (call.causal and (offset is None or offset < 0)),
        dropout_rate=None if call.dropout is None else call.dropout.rate,
        save_weights=unrolled,
        segments=make_segments(
            (length_q, length_k), offset if call.causal else None, sizes, unrolled=unrolled
        ),
        dtype=keras.backend.standardize_dtype(tensors.query.dtype),
    )
    outputs = _run(tensors, settings)
    if settings.needs_totals:
        outputs, totals = outputs[..., :-1], outputs[..., -1:]
        reference = None if reference is None else totals * reference
    outputs = outputs if reference is None else outputs + reference
    return ops.cast(outputs, settings.dtype)


def _prepare(call):
    """Returns (tensors, reference row of the value table or None, K)."""
    dtype = accumulation_dtype(keras.backend.standardize_dtype(call.query.dtype))
    key_differences, _, key_k = _difference_rows(call.key_table, dtype, causal=call.causal)
    value_differences, reference, value_k = _difference_rows(
        call.value_table, dtype, causal=call.causal
    )
    mask = call.mask
    if mask is not None:
        mask = ops.reshape(mask, (*[1] * (4 - len(mask.shape)), *ops.shape(mask)))
    offset = call.query_offset
    tensors = Tensors(
        query=call.query,
        key=call.key,
        value=call.value,
        key_differences=key_differences,
        value_differences=value_differences,
        key_mask=None if call.key_mask is None else ops.cast(call.key_mask, "bool"),
        mask=mask,
        query_offset=None if isinstance(offset, int) else ops.cast(offset, "int32"),
        seed=None if call.dropout is None else call.dropout.seed,
    )
    # Without tables, K has no effect on the outputs.
    return tensors, reference, key_k or value_k or 1


def _difference_rows(table, dtype, *, causal):
    """Returns (rows minus the reference row `[.., L, H]`, reference row `[.., 1, H]`, K).

    The difference rows are ordered from left to right, as the table. In
    `t2t_relpos.attention.tensorflow.band` they are ordered from right to left.
    """
    if table is None:
        return None, None, None
    table = ops.cast(table, dtype)
    if table.shape[-2] == 1:
        # K = 0: repeat the only row, which gives an equivalent table for K = 1.
        table = ops.concatenate([table] * 3, axis=-2)
    k = (table.shape[-2] - 1) // 2
    ids, reference_id = (slice(1, k + 1), 0) if causal else (slice(0, 2 * k), 2 * k)
    reference = table[..., reference_id : reference_id + 1, :]
    return table[..., ids, :] - reference, reference, k


def _run(tensors, settings):
    """Returns the outputs, with a custom gradient."""
    names = [name for name, x in zip(tensors._fields, tensors) if x is not None]

    # Pass all tensors as arguments: JAX can't differentiate with respect to captured tensors.
    def attention(*args):
        forward_tensors = Tensors(**dict(zip(names, args)))
        outputs, saved_results = forward(forward_tensors, settings)

        def gradient(*backward_args, upstream=None):
            if upstream is None:
                gradients = backward(forward_tensors, saved_results, backward_args[0], settings)
            else:  # On PyTorch, Keras passes the arguments again.
                backward_tensors = Tensors(**dict(zip(names, backward_args)))
                results = saved_results
                # PyTorch does not record the forward pass. Repeat it for second derivatives.
                if _records_gradients(backward_tensors):
                    results = forward(backward_tensors, settings)[1]
                gradients = backward(backward_tensors, results, upstream, settings)
            return tuple(gradients.get(name) for name in names)

        return outputs, gradient

    return ops.custom_gradient(attention)(*(x for x in tensors if x is not None))


def _records_gradients(tensors):
    """Returns whether PyTorch records operations on the tensors for a gradient."""
    differentiable = (
        tensors.query,
        tensors.key,
        tensors.value,
        tensors.key_differences,
        tensors.value_differences,
    )
    # A slice requires a gradient only while PyTorch records operations.
    return any(x[:0].requires_grad for x in differentiable if x is not None)
