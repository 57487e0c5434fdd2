"""Positions that a call gives explicitly, and the masks and relative ids that follow."""

from keras import ops

from t2t_relpos.attention.masks import make_attention_mask
from t2t_relpos.attention.relative_ids import key_positions as find_positions
from t2t_relpos.attention.relative_ids import relative_ids_from_positions
from t2t_relpos.layers import call_checks


def given_positions(positions, query_offset, lengths, batch_size):
    """Returns positions of queries and keys, or None if they follow from lengths and offset.

    Args:
        positions: (query positions `[T]` or `[B, T]`, key positions `[S]` or `[B, S]`); None for
            consecutive ones.
        query_offset: key position of query 0, or None.
        lengths: (T, S).
        batch_size: B, or None if unknown.

    Raises:
        ValueError: if positions or offset have another dtype or shape, or both are given.
    """
    call_checks.query_offset(query_offset)
    queries, keys = positions
    if queries is None and keys is None:
        return None
    if queries is not None and query_offset is not None:
        raise ValueError("Expected either `query_offset` or `query_positions`. Received: both.")
    call_checks.positions("query_positions", queries, batch_size, lengths[0])
    call_checks.positions("key_positions", keys, batch_size, lengths[1])
    if queries is None:
        queries = find_positions(*lengths, query_offset)
    if keys is None:
        keys = ops.arange(lengths[1], dtype="int32")
    return ops.cast(queries, "int32"), ops.cast(keys, "int32")


def mask_and_ids(layer, lengths, causal, attention_mask, positions, query_offset):
    """Returns the arguments of `attend` that describe masks and positions of all pairs.

    Args:
        layer: has `sliding_window`, `max_relative_position` and whether it uses tables.
        lengths: (T, S).
        causal: whether keys after a query are masked.
        attention_mask: a mask of pairs, or None.
        positions: the result of `given_positions`.
        query_offset: key position of query 0, or None.
    """
    mask = make_attention_mask(
        lengths,
        attention_mask,
        # Without given positions, causality is a rule and needs no mask of all pairs.
        causal=causal and positions is not None,
        window=layer.sliding_window,
        query_offset=query_offset,
        positions=positions,
    )
    relative_ids = None
    if positions is not None and (layer.use_key_table or layer.use_value_table):
        relative_ids = relative_ids_from_positions(*positions, layer.max_relative_position)
    return {
        "mask": mask,
        "causal": causal and positions is None,
        "query_offset": query_offset,
        "relative_ids": relative_ids,
    }
