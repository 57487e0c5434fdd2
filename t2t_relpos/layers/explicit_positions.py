"""Explicit positions of a call, and the masks and relative ids computed from them."""

from typing import Any, NamedTuple

from keras import ops

from t2t_relpos.attention.masks import make_attention_mask
from t2t_relpos.attention.relative_ids import (
    as_positions,
    key_positions,
    relative_ids_from_positions,
)
from t2t_relpos.layers import call_checks


class PairArguments(NamedTuple):
    """The arguments of a call that concern pairs of a query and a key.

    Args:
        causal: whether keys after a query are masked.
        attention_mask: bool mask of pairs, or None.
        positions: the result of `explicit_positions`.
        query_offset: key position of query 0, or None.
    """

    causal: bool
    attention_mask: Any
    positions: Any
    query_offset: Any

    @property
    def masks_trailing_padding(self):
        """Whether the causal mask of self-attention masks padding that follows all tokens."""
        return self.causal and self.positions is None and self.query_offset is None


def explicit_positions(positions, query_offset, lengths, batch_size):
    """Returns (query positions, key positions), or None if a call gives neither.

    Args:
        positions: (query positions `[T]` or `[B, T]`, key positions `[S]` or `[B, S]`), each a
            tensor, or None for consecutive positions: keys from 0, queries from `query_offset`.
        query_offset: key position of query 0, or None.
        lengths: (T, S).
        batch_size: B, or None if unknown.

    Raises:
        ValueError: if positions or the offset have an unsupported dtype or shape, or if both query
            positions and an offset are given.
    """
    call_checks.scalar_query_offset(query_offset)
    queries, keys = positions
    if queries is None and keys is None:
        return None
    if queries is not None and query_offset is not None:
        raise ValueError("Expected either `query_offset` or `query_positions`. Received: both.")
    call_checks.positions("query_positions", queries, batch_size, lengths[0])
    call_checks.positions("key_positions", keys, batch_size, lengths[1])
    if queries is None:
        queries = key_positions(*lengths, query_offset)
    if keys is None:
        keys = ops.arange(lengths[1], dtype="int32")
    return as_positions("query_positions", queries), as_positions("key_positions", keys)


def mask_and_ids(layer, lengths, pairs):
    """Returns the arguments of `attend` that describe masks and positions of all pairs.

    Args:
        layer: an attention layer with the attributes `sliding_window`, `max_relative_position`,
            `use_key_table` and `use_value_table`.
        lengths: (T, S).
        pairs: a `PairArguments`.
    """
    causal, attention_mask, positions, query_offset = pairs
    mask = make_attention_mask(
        lengths,
        attention_mask,
        # Without explicit positions, `attend` applies causality and the window without a mask.
        causal=causal and positions is not None,
        window=None if positions is None else layer.sliding_window,
        positions=positions,
    )
    relative_ids = None
    if positions is not None and (layer.use_key_table or layer.use_value_table):
        relative_ids = relative_ids_from_positions(*positions, layer.max_relative_position)
    return {
        "mask": mask,
        "causal": causal and positions is None,
        "query_offset": query_offset,
        "sliding_window": layer.sliding_window if positions is None else None,
        "relative_ids": relative_ids,
    }
