"""Blockwise relative attention for TensorFlow on CPUs without XLA.

Heads are processed in groups and queries in blocks, so that the scores of a block fit into the
processor's caches. Terms that do not depend on keys, such as products of queries and table rows,
are computed for all blocks together. The gradient reads saved attention weights or rematerializes
them. With rematerialization, memory is linear in length.

Shapes: Hv depth of values; G heads of a group; X any size.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos.attention.blockwise import extend_table
from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.attention.tensorflow import band, ops
from t2t_relpos.attention.tensorflow.block_layout import BlockLayout, needs_padding
from t2t_relpos.attention.tensorflow.block_loops import BlockAttention
from t2t_relpos.attention.tensorflow.masks import BlockMasks


class _Tensors(NamedTuple):
    query: Any
    key: Any
    value: Any
    key_table: Any
    value_table: Any
    query_offset: Any
    key_mask: Any
    mask: Any
    seed: Any


class _Options(NamedTuple):
    """Python constants. Each combination of values is traced separately."""

    causal: bool
    largest_block: int
    keys_per_group: int
    chunk: int
    may_be_padded: bool
    may_be_fully_masked: bool
    rate: float | None
    save_weights: bool


@tf.autograph.experimental.do_not_convert
def attend(call, sizes, *, save_weights):
    """Returns the outputs `[B, N, T, Hv]`.

    Args:
        call: an `AttentionCall`.
        sizes: a `GroupedBlockSizes`.
        save_weights: whether the gradient reads saved attention weights instead of rematerializing
            them. If True, a SavedModel can't include the gradient.
    """
    query, key = tf.convert_to_tensor(call.query), tf.convert_to_tensor(call.key)
    if query.shape[0] and query.shape[2] and key.shape[2]:  # known, and not 0
        return _attend_nonempty(call, sizes, save_weights=save_weights)

    def empty():
        return tf.zeros(
            tf.concat([tf.shape(query)[:-1], tf.shape(call.value)[-1:]], 0), query.dtype
        )

    # A replica may have an empty batch. Its loops run no step, so the output shape is unknown.
    # Without queries there are no blocks, and without keys no diagonals.
    sizes_of_loops = tf.stack([*tf.unstack(tf.shape(query))[::2], tf.shape(key)[2]])
    outputs = tf.cond(
        tf.reduce_all(sizes_of_loops > 0),
        lambda: _attend_nonempty(call, sizes, save_weights=save_weights),
        empty,
    )
    return tf.ensure_shape(outputs, (*query.shape[:-1], call.value.shape[-1]))


def _attend_nonempty(call, sizes, *, save_weights):
    tables = [
        x if x is None else extend_table(tf.convert_to_tensor(x), 5 if call.causal else 3)
        for x in (call.key_table, call.value_table)
    ]
    dropout = call.dropout
    key_mask, mask = _merge_key_masks(call)
    tensors = _Tensors(
        *(tf.convert_to_tensor(x) for x in (call.query, call.key, call.value)),
        *tables,
        query_offset=tf.cast(call.query_offset, tf.int32),
        key_mask=key_mask,
        mask=mask,
        seed=dropout.seed if dropout else None,
    )
    offset = call.query_offset
    lengths = tensors.query.shape[2], tensors.key.shape[2]
    shape = _band_shape(tensors, sizes.chunk, causal=call.causal)
    all_queries_have_keys = isinstance(offset, int) and offset >= 0
    options = _Options(
        causal=call.causal,
        largest_block=sizes.largest_block,
        keys_per_group=sizes.keys_per_group,
        chunk=sizes.chunk,
        may_be_padded=needs_padding(lengths, offset, shape, sizes.largest_block),
        may_be_fully_masked=key_mask is not None
        or mask is not None
        or (call.causal and not all_queries_have_keys),
        rate=dropout.rate if dropout else None,
        save_weights=save_weights,
    )
    return _attend(tensors, options)


def _merge_key_masks(call):
    """Returns (key mask, mask). A mask `[.., 1, 1, S]` is merged into the key mask."""
    key_mask, mask = call.key_mask, call.mask
    key_mask = None if key_mask is None else tf.cast(key_mask, tf.bool)
    if mask is not None and len(mask.shape) == 4 and mask.shape[1] == mask.shape[2] == 1:
        keys = mask[:, 0, 0]
        keys = tf.broadcast_to(keys, tf.stack([tf.shape(keys)[0], call.length_k]))
        return keys if key_mask is None else key_mask & keys, None
    return key_mask, mask


def _band_shape(tensors, chunk, *, causal):
    table = tensors.value_table if tensors.key_table is None else tensors.key_table
    return band.BandShape((table.shape[-2] - 1) // 2, causal=causal, chunk=chunk)


@ops.shared_function
def _attend(tensors, options):
    query, key, value = tensors[:3]
    dtype = tf.as_dtype(accumulation_dtype(query.dtype))
    shape = _band_shape(tensors, options.chunk, causal=options.causal)
    lengths = tf.shape(query)[2], tf.shape(key)[2]
    heads = _heads_per_group(query.shape[1], options.keys_per_group // tf.maximum(lengths[1], 1))
    layout = BlockLayout(
        lengths,
        tensors.query_offset,
        shape,
        options.largest_block,
        may_be_padded=options.may_be_padded,
    )
    attention = BlockAttention(
        layout,
        band.QueryBand(shape, layout.positions()[:, None], dtype),
        BlockMasks(
            layout,
            query.shape[1] // heads,
            key_mask=tensors.key_mask,
            mask=tensors.mask,
            may_be_fully_masked=options.may_be_fully_masked,
            dtype=dtype,
        ),
        options.rate and SeededDropout(options.rate, tensors.seed),
        query.dtype,
        save_weights=options.save_weights,
    )
    grouped = [_group_heads(x, heads) for x in (query, key, value)]
    num_rows = 2 * shape.max_relative_position + 1
    tables = [
        tf.zeros([num_rows, x.shape[-1]], dtype) if table is None else tf.cast(table, dtype)
        for table, x in ((tensors.key_table, query), (tensors.value_table, value))
    ]
    tables = [_group_tables(table, heads, tf.shape(grouped[0])[0]) for table in tables]
    outputs = attention.attend(*grouped, *tables)
    outputs = tf.reshape(outputs, tf.concat([tf.shape(query)[:-1], tf.shape(value)[-1:]], 0))
    return tf.ensure_shape(outputs, (*query.shape[:-1], value.shape[-1]))


def _heads_per_group(num_heads, max_heads):
    """Returns the largest divisor of `num_heads` that is at most `max_heads`, or 1."""
    divisors = [heads for heads in range(1, num_heads + 1) if num_heads % heads == 0]
    return tf.reduce_max([tf.where(heads <= max_heads, heads, 1) for heads in divisors])


def _group_heads(x, heads):
    """Groups the heads of `[B, N, X, H]`, or of a table `[N, X, H]`, as `[groups, G, X, H]`."""
    return tf.reshape(x, tf.stack([-1, heads, tf.shape(x)[-2], x.shape[-1]]))


def _group_tables(table, heads, num_groups):
    """Returns the table of every group, `[groups, G, R, H]`, or `[groups, 1, R, H]` if shared."""
    if len(table.shape) == 2:
        return tf.broadcast_to(table, tf.stack([num_groups, 1, *table.shape]))
    table = _group_heads(table, heads)
    return tf.tile(table, tf.stack([num_groups // tf.shape(table)[0], 1, 1, 1]))
