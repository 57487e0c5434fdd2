"""Relative attention on TensorFlow: all pairs at once, or block by block where sequences are long, above in memory linear in length."""

import functools

import tensorflow as tf
from keras import ops

from t2t_relpos.attention import _tensorflow_at_once, _tensorflow_dropout
from t2t_relpos.attention._tensorflow_blocks import Blocks
from t2t_relpos.attention._tensorflow_diagonals import Diagonals
from t2t_relpos.attention._tensorflow_layout import Layout, needs_margins
from t2t_relpos.attention._tensorflow_masks import BlockDropout, BlockMasks

LARGEST_BLOCK = 256
# Smaller blocks leave out more of the keys after them.
LARGEST_CAUSAL_BLOCK = 128
# Heads are taken together while they have no more keys than that in all, one by one otherwise: their blocks should fit into caches.
KEYS_AT_ONCE = 4096
# Of the diagonals: long stretches make fewer columns, and more diagonals at their edges.
STRETCH = 32
# Up to so many positions (of pairs: its square) weights are kept for the gradient, as ordinary attention does.
LONGEST_KEPT = 4096
# The sizes above, where weights are kept: these leave the caches anyway, and fewer, larger products are faster.
LARGEST_BLOCK_KEPT = 512
LARGEST_CAUSAL_BLOCK_KEPT = 256
KEYS_AT_ONCE_KEPT = 16384
STRETCH_KEPT = 64


@tf.autograph.experimental.do_not_convert
def attend(
    query,
    key,
    value,
    key_table,
    value_table,
    *,
    dropout,
    recompute,
    longest_whole,
    hidden,
    **settings,
):
    """The outputs of `attend`.

    Args: as those of `attend`: `query_offset`, an int or a scalar tensor, `causal`, `key_mask`, `mask`, and `dropout`, an
        `AttentionDropout` or None.
        recompute: whether the gradient computes weights again, so that memory is linear in T and S; False: above `LONGEST_KEPT`.
            A function whose weights are kept can't be saved with its gradient.
        longest_whole: up to so many positions (of pairs: its square) there are no blocks.
        hidden: gives all that hides keys in one mask, or None.

    Returns:
        outputs `[B, N, T, Hv]`.
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    tables = [x if x is None else tf.convert_to_tensor(x) for x in (key_table, value_table)]
    # Out here: a seed that is drawn in one branch of a graph leaves its generator in that branch.
    rate, seed = (
        (dropout.rate, _tensorflow_dropout.as_seed(dropout.draw_seed()))
        if dropout
        else (None, None)
    )
    causal, query_offset = settings["causal"], settings["query_offset"]
    reach = next(x for x in tables if x is not None).shape[-2] // 2

    def at_once():
        is_masked = settings["key_mask"] is not None or settings["mask"] is not None
        kwargs = {
            "reach": reach,
            "query_offset": query_offset,
            "causal": causal,
            "rate": rate,
            "seed": seed,
        }
        return _tensorflow_at_once.attend(
            query, key, value, *tables, mask=hidden(), is_masked=is_masked, **kwargs
        )

    pairs = ops.shape(query)[2] * ops.shape(key)[2]
    is_short = pairs <= longest_whole**2
    if recompute is False and is_short is not True:
        has_diagonals = _tensorflow_at_once.has_diagonals(query, key, reach, query_offset, causal)
        is_short |= has_diagonals & (pairs <= _tensorflow_at_once.longest(causal) ** 2)
    in_blocks = functools.partial(
        _blocks, query, key, value, tables, rate=rate, seed=seed, **settings
    )
    outputs = _one_of(
        is_short, at_once, lambda: _kept_or_not(query, value, pairs, recompute, in_blocks)
    )
    return tf.ensure_shape(outputs, (*query.shape[:-1], value.shape[-1]))


def _kept_or_not(query, value, pairs, recompute, blocks):
    """What `blocks` gives from whether weights are kept."""

    def some():
        return (
            _one_of(pairs <= LONGEST_KEPT**2, lambda: blocks(True), lambda: blocks(False))
            if recompute is False
            else blocks(False)
        )

    def nothing():
        return tf.zeros(tf.concat([tf.shape(query)[:-1], tf.shape(value)[-1:]], 0), query.dtype)

    # A replica may hold no rows at all, of which loops over heads make nothing that has a shape.
    return some() if query.shape[0] else tf.cond(tf.shape(query)[0] > 0, some, nothing)


def _one_of(condition, true, false):
    """`tf.cond`, or what is asked for where that is known."""
    if isinstance(condition, bool):
        return true() if condition else false()
    return tf.cond(condition, true, false)


def _blocks(query, key, value, tables, keep, *, rate, seed, **settings):
    tables = [x if x is None else _with_diagonals(x, settings["causal"]) for x in tables]
    run = _in_blocks.python_function if tf.executing_eagerly() else _in_blocks
    tensors = _as_tensors(query, key, next(x for x in tables if x is not None), keep, **settings)
    return run(query, key, value, *tables, **tensors, rate=rate, seed=seed, keep=keep)


def _with_diagonals(table, causal):
    """A table that reaches as far as `Diagonals` need: rows at its ends stand for all positions further away."""
    while table.shape[-2] < (5 if causal else 3):
        table = tf.concat([table[..., :1, :], table, table[..., -1:, :]], -2)
    return table


def _sizes(causal, keep):
    """(largest block, keys at once, stretch)."""
    if keep:
        return (
            LARGEST_CAUSAL_BLOCK_KEPT if causal else LARGEST_BLOCK_KEPT,
            KEYS_AT_ONCE_KEPT,
            STRETCH_KEPT,
        )
    return LARGEST_CAUSAL_BLOCK if causal else LARGEST_BLOCK, KEYS_AT_ONCE, STRETCH


def _as_tensors(query, key, table, keep, query_offset, causal, key_mask, mask):
    """Arguments that don't make `_in_blocks` trace anew."""
    exact = tf.float32 if query.dtype.size == 2 else query.dtype
    largest_block, keys_at_once, stretch = _sizes(causal, keep)
    reach = (table.shape[-2] - 1) // 2
    margins = needs_margins(
        query.shape[2], key.shape[2], query_offset, reach, causal, largest_block, stretch
    )
    if mask is not None and len(mask.shape) == 4 and mask.shape[1] == mask.shape[2] == 1:
        # One for all queries hides keys.
        keys = tf.cast(mask[:, 0, 0], tf.bool)
        key_mask, mask = keys if key_mask is None else tf.cast(key_mask, tf.bool) & keys, None
    return {
        "query_offset": tf.cast(query_offset, tf.int32),
        "causal": causal,
        "key_mask": None if key_mask is None else tf.cast(key_mask, tf.bool),
        "mask": None if mask is None else tf.cast(mask, tf.bool),
        "exact": exact,
        "largest_block": largest_block,
        "keys_at_once": keys_at_once,
        "stretch": stretch,
        "margins": margins,
        "blind": key_mask is not None
        or mask is not None
        or (causal and not (isinstance(query_offset, int) and query_offset >= 0)),
    }


# A function of its own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _in_blocks(
    query, key, value, key_table, value_table, query_offset, causal, key_mask, mask, exact,
    largest_block, keys_at_once, stretch, margins, blind, rate, seed, keep,
):  # fmt: skip
    num_labels = (value_table if key_table is None else key_table).shape[-2]
    reach = (num_labels - 1) // 2
    lengths = tf.shape(query)[2], tf.shape(key)[2]
    heads = _heads_at_once(query.shape[1], keys_at_once // tf.maximum(lengths[1], 1))
    layout = Layout(*lengths, query_offset, reach, causal, largest_block, stretch, margins)

    def product(x, y, **transposed):
        """In the type of the query; its result in float32 at least."""
        return tf.cast(
            tf.matmul(tf.cast(x, query.dtype), tf.cast(y, query.dtype), **transposed), exact
        )

    diagonals = Diagonals(layout.places()[:, None], reach, causal, stretch, exact)
    masks = BlockMasks(layout, query.shape[1] // heads, key_mask, mask, margins, blind, exact)
    drop = rate and BlockDropout(layout, rate, seed, exact)
    rows = [_in_groups(x, heads) for x in (query, key, value)]
    tables = [
        _of_groups(
            tf.zeros([num_labels, x.shape[-1]], exact) if table is None else tf.cast(table, exact),
            heads,
            tf.shape(rows[0])[0],
        )
        for table, x in ((key_table, query), (value_table, value))
    ]
    outputs = Blocks(layout, diagonals, masks, drop, product, keep).attend(*rows, *tables)
    shape = tf.concat([tf.shape(query)[:-1], tf.shape(value)[-1:]], 0)
    return tf.ensure_shape(tf.reshape(outputs, shape), (*query.shape[:-1], value.shape[-1]))


def _heads_at_once(num_heads, most):
    """The largest divisor of the number of heads that is not above `most`; 1 at least. A scalar tensor."""
    divisors = [heads for heads in range(1, num_heads + 1) if num_heads % heads == 0]
    return tf.reduce_max([tf.where(heads <= most, heads, 1) for heads in divisors])


def _in_groups(x, heads):
    """`[B, N, X, H]`, or a table `[N, X, H]` -> `[groups, G, X, H]`."""
    return tf.reshape(x, tf.stack([-1, heads, tf.shape(x)[-2], x.shape[-1]]))


def _of_groups(table, heads, num_groups):
    """A table of every group: `[num_groups, G, 2K + 1, H]`; `[num_groups, 1, 2K + 1, H]` of one for all heads."""
    if len(table.shape) == 2:
        return tf.broadcast_to(table, tf.stack([num_groups, 1, *table.shape]))
    table = _in_groups(table, heads)
    return tf.tile(table, tf.stack([num_groups // tf.shape(table)[0], 1, 1, 1]))
