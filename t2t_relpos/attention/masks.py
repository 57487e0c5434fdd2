"""One meaning of masks: boolean, True = attend, nothing to attend to = zeros."""

from keras import backend, ops

from t2t_relpos.attention.labels import key_positions


def causal_mask(length_q, length_k, query_offset=None):
    """True where a key does not lie after its query.

    Args:
        length_q: number of queries T.
        length_k: number of keys S.
        query_offset: key position of query 0; default `S - T`, so that the
            last query sees every key (keras.layers.MultiHeadAttention counts
            from the top left instead; for T = S both are the same).

    Returns:
        bool `[T, S]`, or `[B, T, S]` for a `query_offset` of shape `[B]`.

    Example:
    >>> from t2t_relpos.attention import causal_mask
    >>> ops.convert_to_numpy(causal_mask(2, 3)).tolist()
    [[True, True, False], [True, True, True]]
    """
    queries = key_positions(length_q, length_k, query_offset)
    return ops.arange(length_k, dtype="int32") <= ops.expand_dims(queries, -1)


def window_mask(length_q, length_k, window, query_offset=None):
    """True where query and key lie less than `window` positions apart.

    Args and Returns as `causal_mask`; `window` as `sliding_window` of
    keras.layers.MultiHeadAttention: 1 lets a query see its own position alone.
    """
    queries = key_positions(length_q, length_k, query_offset)
    distance = ops.arange(length_k, dtype="int32") - ops.expand_dims(queries, -1)
    return ops.abs(distance) < window


def key_padding_mask(mask):
    """`[B, S]` keys that exist -> `[B, 1, 1, S]`, for all heads and queries."""
    return ops.cast(mask, "bool")[:, None, None, :]


def both_masks(mask, other):
    """Where both masks of the same shape are True; None stands for True everywhere."""
    masks = [ops.cast(m, "bool") for m in (mask, other) if m is not None]
    return ops.logical_and(*masks) if len(masks) == 2 else (masks or [None])[0]


def combine_masks(*masks):
    """Logical and of those that are not None; None if all are.

    Every mask broadcasts to `[B, N, T, S]`; `[T, S]` and `[B, T, S]` get the
    missing axes (a mask of rank 3 is one for every batch entry, not head).
    """
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = ops.cast(mask, "bool")
        if len(mask.shape) == 3:
            mask = ops.expand_dims(mask, 1)
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def attention_mask_of(
    length_q,
    length_k,
    query_mask=None,
    key_masks=(),
    attention_mask=None,
    causal=False,
    window=None,
    query_offset=None,
    positions=None,
):
    """All that hides keys from queries in one mask, or None if nothing does.

    Args:
        length_q: number of queries T.
        length_k: number of keys S.
        query_mask: bool `[B, T]`; a query that does not exist attends to nothing.
        key_masks: bool `[B, S]` each, or None; keys that exist.
        attention_mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`.
        causal: whether keys after a query are hidden.
        window: see `window_mask`.
        query_offset: key position of query 0; default `S - T`.
        positions: instead of an offset, int positions of queries (`[T]` or
            `[B, T]`) and of keys (`[S]` or `[B, S]`), by which causality and
            window go.

    Returns:
        bool that broadcasts to `[B, N, T, S]`, True = attend.
    """
    if positions is None:
        not_later = causal_mask(length_q, length_k, query_offset) if causal else None
        near = window_mask(length_q, length_k, window, query_offset) if window else None
    else:
        queries, keys = positions
        distance = ops.expand_dims(keys, -2) - ops.expand_dims(queries, -1)
        not_later = distance <= 0 if causal else None
        near = ops.abs(distance) < window if window else None
    return combine_masks(
        None if query_mask is None else ops.expand_dims(query_mask, -1),
        *(None if mask is None else key_padding_mask(mask) for mask in key_masks),
        attention_mask,
        not_later,
        near,
    )


def masked_softmax(scores, mask=None):
    """Softmax over the last axis, of the entries that may be attended to.

    Computed in float32 at least. A row without any such entry is zero.

    Args:
        scores: `[..., S]` logits.
        mask: bool, broadcasts to `scores`; True = attend. None: all.

    Returns:
        `[..., S]` weights in the dtype of `scores`; rows sum to 1 or are 0.
    """
    dtype = backend.standardize_dtype(scores.dtype)
    if dtype in ("float16", "bfloat16"):
        scores = ops.cast(scores, "float32")
    if mask is not None and backend.backend() == "tensorflow":
        from t2t_relpos.attention import _tensorflow_masks

        return ops.cast(_tensorflow_masks.masked_softmax(scores, ops.cast(mask, "bool")), dtype)
    if mask is not None:
        # Far below any logit, and its difference to a logit is still finite.
        scores = ops.where(mask, scores, ops.cast(-1e30, scores.dtype))
    if scores.shape[-1] == 1:
        # Keras warns of a softmax over a single entry, which is right here.
        weights = ops.exp(scores - scores)
    else:
        weights = ops.softmax(scores, axis=-1)
    if mask is not None:
        weights = ops.where(mask, weights, ops.zeros_like(weights))
    return ops.cast(weights, dtype)
