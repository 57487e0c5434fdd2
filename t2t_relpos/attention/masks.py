"""Boolean attention masks: True = attend. A fully masked query gets zeros."""

import keras

from t2t_relpos import _checks, backend
from t2t_relpos.attention.relative_ids import as_positions, key_positions, range_around
from t2t_relpos.backend import accumulation_dtype, arange, ops


def causal_mask(length_q, length_k, query_offset=None):
    """Returns True where the key is not after the query.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0. Default: `S - T`, so that the last query attends to
            every key. keras.layers.MultiHeadAttention uses 0, which differs if T != S.

    Returns:
        bool `[T, S]`, or `[B, T, S]` for a `query_offset` of shape `[B]`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.attention import causal_mask
    >>> ops.convert_to_numpy(causal_mask(2, 3)).tolist()
    [[True, True, False], [True, True, True]]
    """
    queries = key_positions(length_q, length_k, query_offset)
    return arange(length_k) <= ops.expand_dims(queries, -1)


def window_mask(length_q, length_k, window, query_offset=None):
    """Returns True where the distance of query and key is less than `window`.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        window: as `sliding_window` of keras.layers.MultiHeadAttention. With 1, a query attends to
            its own position only.
        query_offset: key position of query 0. Default: `S - T`.

    Returns:
        bool `[T, S]`, or `[B, T, S]` for a `query_offset` of shape `[B]`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.attention import window_mask
    >>> ops.convert_to_numpy(window_mask(3, 3, window=2)).tolist()
    [[True, True, False], [True, True, True], [False, True, True]]
    """
    queries = key_positions(length_q, length_k, query_offset)
    return _within(queries, arange(length_k), window)


def _within(queries, keys, window):
    """Returns whether positions `[.., T]` and `[.., S]` are closer than `window`, `[.., T, S]`."""
    distance = _checks.positive_int(window, "window") - 1
    lowest, highest = range_around(ops.expand_dims(queries, -1), distance, distance)
    keys = ops.expand_dims(keys, -2)
    return ops.logical_and(keys >= lowest, keys <= highest)


def key_padding_mask(mask):
    """Returns a mask of keys, expanded to all heads and queries.

    Args:
        mask: bool or int `[B, S]`, True = attend.

    Returns:
        bool `[B, 1, 1, S]`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.attention import key_padding_mask
    >>> token_ids = np.array([[5, 7, 0]])
    >>> ops.convert_to_numpy(key_padding_mask(token_ids != 0)).tolist()
    [[[[True, True, False]]]]
    """
    _checks.boolean(mask, "mask")
    return ops.expand_dims(ops.cast(mask, "bool"), (1, 2))


def expand_to_batch(mask, x):
    """Returns a padding mask with the batch size of `x`, or None for None.

    Args:
        mask: `[B, ...]`, or `[1, ...]` for all batch entries.
        x: `[B, ...]`.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if mask.shape[0] != 1 or x.shape[0] == 1:
        return mask
    return ops.broadcast_to(mask, (ops.shape(x)[0], *ops.shape(mask)[1:]))


def combine_masks(*masks):
    """Returns the conjunction of masks, or None if all are None.

    Args:
        *masks: bool, each broadcastable to `[B, N, T, S]`, or None. A mask of rank 3 is
            `[B, T, S]`.

    Returns:
        bool that broadcasts to `[B, N, T, S]`, or None.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.attention import causal_mask, combine_masks, key_padding_mask
    >>> padding = key_padding_mask(np.array([[True, True, False]]))
    >>> ops.convert_to_numpy(combine_masks(padding, causal_mask(3, 3), None)).tolist()
    [[[[True, False, False], [True, True, False], [True, True, False]]]]
    """
    for mask in masks:
        _checks.boolean(mask, "mask")
    return conjunction(*masks)


def conjunction(*masks):
    """Returns the result of `combine_masks` for masks that are checked."""
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = ops.cast(mask, "bool")
        if len(mask.shape) == 3:
            mask = ops.expand_dims(mask, 1)
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def make_attention_mask(
    lengths, attention_mask=None, *, causal=False, window=None, query_offset=None, positions=None
):
    """Returns the conjunction of an explicit mask, causality and a window, or None without any.

    Args:
        lengths: (T, S).
        attention_mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`. Default: None.
        causal: whether keys after a query are masked. Default: False.
        window: a query attends to keys at distances less than this. Default: None, no limit.
        query_offset: key position of query 0. Default: `S - T`.
        positions: (int positions of queries, `[T]` or `[B, T]`, and of keys, `[S]` or `[B, S]`).
            They replace `query_offset`. Default: None.

    Returns:
        bool that broadcasts to `[B, N, T, S]`, or None.

    Raises:
        ValueError: if a mask is of a float dtype, `window` is not a positive integer, or positions
            are not integers, or are known and do not fit into int32.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.attention import make_attention_mask
    >>> ops.convert_to_numpy(make_attention_mask((3, 3), causal=True, window=2)).tolist()
    [[True, False, False], [True, True, False], [False, True, True]]
    """
    _checks.boolean(attention_mask, "mask")
    if positions is None:
        not_later = causal_mask(*lengths, query_offset) if causal else None
        within = window_mask(*lengths, window, query_offset) if window is not None else None
    else:
        names = "query_positions", "key_positions"
        queries, keys = map(as_positions, positions, names)
        not_later = ops.expand_dims(keys, -2) <= ops.expand_dims(queries, -1) if causal else None
        within = _within(queries, keys, window) if window is not None else None
    return conjunction(attention_mask, not_later, within)


def masked_softmax(scores, mask=None):
    """Returns the softmax over the unmasked entries of the last axis, zero elsewhere.

    The softmax is computed at least in float32. A fully masked row is zero.

    Args:
        scores: `[..., S]` logits.
        mask: bool, broadcasts to `scores`; True = attend. Default: None, all entries.

    Returns:
        `[..., S]` weights in the dtype of `scores`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.attention import masked_softmax
    >>> mask = np.array([[True, True, False], [False, False, False]])
    >>> ops.convert_to_numpy(masked_softmax(np.ones((2, 3), "float32"), mask)).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    dtype = keras.backend.standardize_dtype(scores.dtype)
    scores = ops.cast(scores, accumulation_dtype(dtype))
    _checks.boolean(mask, "mask")
    mask = None if mask is None else ops.cast(mask, "bool")
    return ops.cast(backend.softmax(scores, mask), dtype)
