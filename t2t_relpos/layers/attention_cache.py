"""Attention to a cache of keys and values, in KerasHub's layout.

A cache is one array `[B, 2, S, G, H]`, or a pair `[B, S, G, H]` and `[B, S, G, Hv]` if `value_dim`
of the layer, a `RelativeMultiHeadAttention`, differs from `key_dim`. G is its number of heads of
keys and values, `num_key_value_heads`.
"""

from t2t_relpos import _checks, backend
from t2t_relpos.attention.relative_ids import as_positions
from t2t_relpos.backend import one_or_nan, ops, write_slice

# Options of `attend` for one query, whose attention takes memory linear in length anyway.
_ONE_QUERY = {"return_weights": True, "rematerialize": None}


def attend_with_cache(layer, query, value, cache, update_index, pairs):
    """Computes `RelativeMultiHeadAttention.attend_with_cache`, which documents the arguments.

    `pairs` is a `_Pairs` of the layer without explicit positions. Its offset may be `[B]`.
    """
    _checks.built(layer)
    for name, x in (("query", query), ("value", value)):
        backend.check_dense(x, f"`{name}`")
    check_cache(layer, "cache", cache, {"B": query.shape[0]})
    _check_offset(layer, query, update_index, pairs)
    fits = True
    if update_index is not None:
        cache, fits = _write(layer, value, cache, update_index)
    keys, values = (cache[:, 0], cache[:, 1]) if hasattr(cache, "shape") else cache
    query, keys, values = (ops.cast(x, layer.compute_dtype) for x in (query, keys, values))
    outputs, _ = layer._attend_projected(
        (layer.query_dense(query), keys, values),
        pairs,
        **_ONE_QUERY if query.shape[1] == 1 else {},
    )
    if fits is not True:  # A compiled graph can't raise an error.
        outputs = outputs * one_or_nan(fits, outputs.dtype)
    return layer._merge_heads(outputs, query), cache


def cache_length(cache):
    """Returns the number of positions of a cache, an int or a scalar tensor."""
    return ops.shape(cache)[2] if hasattr(cache, "shape") else ops.shape(cache[0])[1]


def check_cache(layer, name, cache, sizes):
    """Raises ValueError if a cache does not have the layout of a layer, and B and S of `sizes`."""
    sizes = sizes | {"N": layer.num_key_value_heads, "H": layer.key_dim, "Hv": layer.value_dim}
    if layer.value_dim == layer.key_dim:
        _checks.check(cache, name, "B 2 S N H", "float", sizes, required=True)
        return
    if not isinstance(cache, (tuple, list)) or len(cache) != 2:
        received = "one array" if hasattr(cache, "shape") else type(cache).__name__
        raise ValueError(
            f"Expected `{name}` to be a pair of keys [B, S, N, H] and values [B, S, N, Hv], "
            f"because `value_dim` differs from `key_dim`. Received: {received}, "
            f"value_dim={layer.value_dim}, key_dim={layer.key_dim}."
        )
    for number, spec in enumerate(("B S N H", "B S N Hv")):
        part = f"{name}[{number}]"
        sizes |= _checks.check(cache[number], part, spec, "float", sizes, required=True)


def _check_offset(layer, query, update_index, pairs):
    """Raises ValueError if the offset of a call is missing, or not supported by its layer."""
    offset = pairs.query_offset
    needs_offset = pairs.causal or layer.sliding_window is not None
    if needs_offset and update_index is not None and offset is None:
        raise ValueError(
            "Expected `query_offset` with `update_index` and a causal mask or a sliding window. "
            "Received: query_offset=None, which places the queries at the end of the cache. In "
            "self-attention, pass query_offset=update_index."
        )
    is_per_entry = len(getattr(offset, "shape", ())) == 1
    if is_per_entry and layer.flash_attention and query.shape[1] != 1:
        raise ValueError(
            "Expected one query for `query_offset` of shape [B] and `flash_attention=True`. "
            f"Received: query shape {tuple(query.shape)}, query_offset shape "
            f"{tuple(offset.shape)}. Pass one query or one offset for the batch, or set "
            "`flash_attention=None`."
        )


def _write(layer, value, cache, update_index):
    """Returns (the cache with the keys and values of `value`, whether they fit into it)."""
    index, advice = _checks.as_array(update_index), "All sequences have the same position."
    _checks.check(index, "update_index", "", "int", advice=advice)
    count, length = ops.shape(value)[1], cache_length(cache)
    if isinstance(length, int) and isinstance(count, int) and count:
        name = "positions" if count == 1 else f"the first of {count} positions"
        advice = f"The cache has length {length}. Create a longer one, or write fewer positions."
        _checks.in_range(index, name, 0, length - count + 1, advice)
    if not _checks.is_integer(update_index):
        update_index = as_positions(update_index, "update_index")
    fits = (update_index >= 0) & (update_index <= length - count)
    new = layer.project_cache(value)
    if hasattr(cache, "shape"):
        return write_slice(cache, ops.cast(new, cache.dtype), update_index, axis=2), fits
    parts = zip(cache, new)
    return tuple(write_slice(x, ops.cast(y, x.dtype), update_index, axis=1) for x, y in parts), fits
