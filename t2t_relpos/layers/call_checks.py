"""Checks the arguments of attention layers before an op uses them."""

import keras

from t2t_relpos._checks import as_array, boolean, differ, fits_int32, integers, known_range


def built(layer):
    """Raises ValueError if a layer has no weights yet."""
    if not layer.built:
        raise ValueError(
            f"Expected a built layer. Received: {layer.name}, which has no weights yet. Call "
            "the layer or its `build` first."
        )


def sequences(query, value, key):
    """Raises ValueError if the sequences are known to have different batch sizes."""
    batch_sizes(x.shape[0] for x in (query, value, key))


def batch_sizes(sizes):
    """Raises ValueError if known batch sizes of query, value and key differ."""
    sizes = list(sizes)
    if len({size for size in sizes if isinstance(size, int)}) > 1:
        raise ValueError(
            "Expected `query`, `value` and `key` of the same batch size. Received: batch sizes "
            f"{', '.join(map(str, sizes))}."
        )


def sequence(name, values):
    """Raises ValueError if a sequence is missing or not of rank 3."""
    if values is None:
        raise ValueError(
            f"Expected `{name}` of shape [batch, length, width]. Received: None. For "
            "self-attention, pass the same tensor as `query` and `value`."
        )
    sequence_shape(name, values.shape)


def sequence_shape(name, shape):
    """Raises ValueError if the shape of a sequence is not of rank 3."""
    if len(shape) != 3:
        raise ValueError(
            f"Expected `{name}` of shape [batch, length, width]: relative positions have one axis. "
            f"Received: shape {tuple(shape)}. Fold further axes into the batch."
        )


def sequence_shapes(query_shape, value_shape, key_shape):
    """Raises ValueError if shapes are not of rank 3, or keys and values differ in length."""
    key_and_value_lengths(key_shape, value_shape)
    for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
        sequence_shape(name, shape)


def key_and_value_lengths(key_shape, value_shape):
    """Raises ValueError if keys and values are known to have different lengths."""
    lengths = tuple(key_shape[1:-1]), tuple(value_shape[1:-1])
    if len(lengths[0]) != len(lengths[1]) or any(map(differ, *lengths)):
        raise ValueError(
            "Expected `key` and `value` of the same length: all axes except the last must be "
            f"equal. Received: key shape {tuple(key_shape)}, value shape {tuple(value_shape)}."
        )


def width(name, shape, expected):
    """Raises ValueError if the last axis of a sequence does not have the size of a built layer."""
    if differ(shape[-1], expected):
        raise ValueError(
            f"Expected `{name}` of width {expected}, for which the layer was built. "
            f"Received: shape {tuple(shape)}."
        )


def self_attention_lengths(query_shape, value_shape):
    """Raises ValueError if queries and values are known to have different lengths."""
    if differ(query_shape[1], value_shape[1]):
        raise ValueError(
            "Expected `query` and `value` of the same length: this is self-attention. "
            f"Received: query shape {tuple(query_shape)}, value shape {tuple(value_shape)}."
        )


def sequences_and_masks(query, value, key, attention_mask, padding_masks, num_heads):
    """Raises ValueError if sizes differ, or a mask has an unsupported dtype or shape.

    Args:
        query: `[B, T, D]`.
        value: `[B, S, D]`.
        key: `[B, S, D]`.
        attention_mask: `[B, T, S]`, `[T, S]`, `[B, N, T, S]`, or None.
        padding_masks: a dict of the padding masks by argument name. `"query_mask"` is `[B, T]`, the
            others are `[B, S]`. Each may be None.
        num_heads: N.
    """
    for name, x in (("query", query), ("value", value), ("key", key)):
        sequence(name, x)
    sequences(query, value, key)
    key_and_value_lengths(key.shape, value.shape)
    batch, length_q, length_k = query.shape[0], query.shape[1], value.shape[1]
    for name, values in padding_masks.items():
        length, letter = (length_q, "T") if name == "query_mask" else (length_k, "S")
        padding_mask(name, values, f"[B, {letter}]", (batch, length))
    pair_mask("attention_mask", attention_mask, (batch, length_q, length_k), num_heads)


def pair_mask(name, values, sizes, num_heads=None):
    """Raises ValueError if an attention mask has an unsupported dtype or shape.

    Args:
        name: name of the argument.
        values: the mask, or None.
        sizes: (B, T, S), None where unknown.
        num_heads: N, or None if the mask must not differ between heads.
    """
    shapes = [("[B, T, S]", sizes), ("[T, S]", sizes[1:])]
    if num_heads is not None:
        shapes.append(("[B, N, T, S]", (sizes[0], num_heads, *sizes[1:])))
    mask(name, values, *shapes)


def padding_mask(name, values, letters, sizes):
    """Raises ValueError if a padding mask has an unsupported dtype or shape.

    Only the batch axis may have size 1. One value per sequence would mask all of it or nothing.

    Args:
        name: name of the argument.
        values: the mask, or None.
        letters: the expected shape as text, such as "[B, S]".
        sizes: the expected shape (B, length), None where unknown.
    """
    mask(name, values, (letters, sizes))
    if values is not None and not _equals(tuple(values.shape)[1:], sizes[1:]):
        raise ValueError(
            f"Expected `{name}` of shape {letters} = {_text(sizes)}, with an entry for every "
            f"position. Received: shape {tuple(values.shape)}."
        )


def mask(name, values, *shapes):
    """Raises ValueError if a mask is not boolean or integer, or has none of the allowed shapes.

    Args:
        name: name of the argument.
        values: the mask, or None.
        *shapes: (letters, sizes) of every allowed shape. A size None fits any size, and a size of
            1 in the mask is broadcast.
    """
    if values is None:
        return
    if not hasattr(values, "shape"):
        raise ValueError(
            f"Expected `{name}` to be a tensor or an array. Received: a {type(values).__name__}. "
            "Convert it with numpy.asarray."
        )
    boolean(name, values)
    shape = tuple(values.shape)
    if not any(_broadcasts(shape, sizes) for _, sizes in shapes):
        expected = " or ".join(f"{letters} = {_text(sizes)}" for letters, sizes in shapes)
        raise ValueError(f"Expected `{name}` of shape {expected}. Received: shape {shape}.")


def scalar_query_offset(value):
    """Raises ValueError if an offset is not a scalar integer that fits into int32."""
    if value is None:
        return
    values = as_array(value)
    integers("query_offset", values)
    if tuple(values.shape) != ():
        raise ValueError(
            "Expected `query_offset` to be an int or a scalar tensor. Received: shape "
            f"{tuple(values.shape)}. Pass `query_positions` for positions per batch entry."
        )
    fits_int32("query_offset", values)


def positions(name, values, batch_size, length):
    """Raises ValueError unless positions are integers of shape [length] or [B, length].

    Their values must fit into int32.

    Args:
        name: name of the argument.
        values: the positions, or None.
        batch_size: B, or None if unknown.
        length: number of positions, or None if unknown.
    """
    if values is None:
        return
    values = as_array(values)
    integers(name, values)
    shape = tuple(values.shape)
    expected = (length,), (batch_size, length)
    if not any(_equals(shape, sizes) for sizes in expected):
        raise ValueError(
            f"Expected `{name}` with a position for every element: shape {_text(expected[0])} or "
            f"{_text(expected[1])}. Received: shape {shape}."
        )
    fits_int32(name, values)


def cache(name, values, layer, batch_size, length=None):
    """Raises ValueError if a cache in KerasHub's layout is not a float array of the right shape.

    In this layout, keys and values have the same size: layers with another `value_dim` are an
    error.

    Args:
        name: name of the argument.
        values: the cache, `[B, 2, S, N, H]`.
        layer: the attention layer.
        batch_size: B, or None if unknown.
        length: S, or None if any length is allowed.
    """
    if not hasattr(values, "shape"):
        raise ValueError(
            f"Expected `{name}` to be an array [B, 2, S, N, H]. Received: a "
            f"{type(values).__name__}. The caches of `start_cache` are for `step`."
        )
    if "float" not in keras.backend.standardize_dtype(values.dtype):
        raise ValueError(
            f"Expected `{name}` of a floating-point dtype. Received: dtype {values.dtype}."
        )
    if layer.value_dim != layer.key_dim:
        raise ValueError(
            f"Expected `value_dim` to be equal to `key_dim`, because `{name}` is one array "
            f"[B, 2, S, N, H] of keys and values. Received: value_dim={layer.value_dim}, "
            f"key_dim={layer.key_dim}. Use `start_cache` and `step` instead."
        )
    shape = tuple(values.shape)
    expected = (batch_size, 2, length, layer.num_heads, layer.key_dim)
    if not _equals(shape, expected):
        raise ValueError(
            f"Expected `{name}` of shape [B, 2, S, N, H] = {_text(expected)}: keys and values of "
            f"{layer.num_heads} heads of size {layer.key_dim}. Received: shape {shape}."
        )


def step(layer, query, cache, position):
    """Raises ValueError if the arguments of an attention layer's decoding step are not supported.

    Args:
        layer: the attention layer.
        query: `[B, 1, D]`.
        cache: the dict of keys and values.
        position: the position of all batch entries, or int `[B]`.
    """
    batch_size = query.shape[0]
    if not _equals(tuple(query.shape), (batch_size, 1, None)):
        raise ValueError(
            "Expected `query` of shape [B, 1, D], one position of each sequence. Received: shape "
            f"{tuple(query.shape)}. Call `step` for one position at a time."
        )
    depths, length = {"key": layer.key_dim, "value": layer.value_dim}, None
    if not isinstance(cache, dict) or cache.keys() != depths.keys():
        received = f"keys {sorted(cache)}" if isinstance(cache, dict) else type(cache).__name__
        raise ValueError(
            "Expected `cache` to be the dict that `start_cache` or `step` returned. Received: "
            f"{received}. For caches [B, 2, S, N, H], use `attend_with_cache`."
        )
    for name, depth in depths.items():
        shape, expected = tuple(cache[name].shape), (batch_size, layer.num_heads, length, depth)
        if not _equals(shape, expected):
            raise ValueError(
                f"Expected `cache[{name!r}]` of shape [B, N, S, H] = {_text(expected)}. Received: "
                f"shape {shape}. Pass the batch size of `query` to `start_cache`."
            )
        length = shape[2]
    position = as_array(position)
    integers("`position`", position)
    shape = tuple(position.shape)
    if shape != () and not _equals(shape, (batch_size,)):
        raise ValueError(
            f"Expected `position` to be a scalar or of shape [B] = {_text((batch_size,))}. "
            f"Received: shape {shape}."
        )
    cache_position(position, length)


def cache_update_index(index, length, count):
    """Raises ValueError if an update index is no scalar integer, or known and outside a cache.

    Args:
        index: the first position to write.
        length: length of the cache.
        count: number of positions to write.
    """
    index = as_array(index)
    integers("`update_index`", index)
    if tuple(index.shape) != ():
        raise ValueError(
            "Expected `update_index` to be an int or a scalar tensor. Received: shape "
            f"{tuple(index.shape)}. To write another position of each sequence, use `step`."
        )
    cache_position(index, length, count)


def cache_position(position, length, count=1):
    """Raises ValueError if positions are known to be outside a cache of known length.

    Args:
        position: the first position of each batch entry, or of all.
        length: length of the cache.
        count: number of consecutive positions.
    """
    if not (isinstance(length, int) and isinstance(count, int)) or count == 0:
        return
    low, high = known_range(position)
    if low is None:
        return
    high = high + count - 1
    if not 0 <= low <= high < length:
        received = f"position {low}" if low == high else f"positions from {low} to {high}"
        advice = " Create a longer cache." if high >= length else ""
        raise ValueError(
            f"Expected positions in [0, {length}): the cache has length {length}. Received: "
            f"{received}.{advice}"
        )


def _broadcasts(shape, sizes):
    return len(shape) == len(sizes) and all(
        got == 1 or want == got or not isinstance(want, int) or not isinstance(got, int)
        for got, want in zip(shape, sizes, strict=True)
    )


def _equals(shape, sizes):
    return len(shape) == len(sizes) and all(
        want == got or not isinstance(want, int) or not isinstance(got, int)
        for got, want in zip(shape, sizes, strict=True)
    )


def _text(sizes):
    return "[" + ", ".join("*" if not isinstance(s, int) else str(s) for s in sizes) + "]"
