"""Attention of all pairs at once on TensorFlow, with a gradient of its own.

The gradient of a softmax takes from every entry what all keys of a query have in common: that is known from the outputs alone. Where
sequences are long, what passes over all pairs is what costs, and little else does here; where they are short, it is the number of
operations: a way to take relative terms is chosen once, and the gradient knows of few tensors.
"""

import functools

import tensorflow as tf
from keras import ops

from t2t_relpos.attention import _tensorflow_dropout
from t2t_relpos.attention._tensorflow_diagonals import Band, Diagonals
from t2t_relpos.attention._tensorflow_lookup import RowTerms
from t2t_relpos.attention._tensorflow_masks import HIDDEN
from t2t_relpos.attention._tensorflow_terms import DiagonalTerms, NoTerms
from t2t_relpos.attention._tensorflow_triangle import TriangleTerms, labels_of_distances
from t2t_relpos.attention.labels import relative_labels

# Up to so many keys stretches are short: long ones make fewer columns, and more diagonals at their edges.
LONGEST_SHORT = 256
SHORT_STRETCH, LONG_STRETCH = 16, 32
# From so many positions on (of pairs: from its square) diagonals are faster than rows looked up for all pairs.
SHORTEST = 96
# Where causal there are no stretches, and it pays sooner.
SHORTEST_CAUSAL = 40
# Up to so many positions they need no more memory than plain attention, and are faster than blocks, which leave out what is hidden.
LONGEST = 1024
LONGEST_CAUSAL = 256
# Up to so many positions one product with rows of all distances is faster than rows looked up for all pairs.
LONGEST_TRIANGLE = 39


def longest(causal):
    """Up to how many positions (of pairs: its square) diagonals are faster than blocks."""
    return LONGEST_CAUSAL if causal else LONGEST


def has_diagonals(query, key, reach, query_offset, causal):
    """Whether diagonals are the fastest way for these lengths, and there are some: where the last query stands at the last key.

    Args: as those of `attend`; `reach` is K.

    Returns:
        a bool, or a scalar tensor.
    """
    length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
    stretch = _stretch(length_k)
    causal = _needs_no_stretches(reach, causal)
    shortest = SHORTEST_CAUSAL if causal else SHORTEST
    return (
        (reach > 0)
        & (length_q * length_k >= shortest**2)
        & (length_q >= reach + (0 if causal else stretch))
        & (length_k >= length_q)
        & (query_offset == length_k - length_q)
    )


def attend(
    query,
    key,
    value,
    key_table,
    value_table,
    *,
    reach,
    query_offset,
    mask,
    is_masked,
    causal,
    rate,
    seed,
):
    """The outputs of `attend`.

    Args:
        query, key, value, key_table, value_table, query_offset: as those of `attend`.
        reach: K.
        mask: bool, broadcasts to `[B, N, T, S]`, all that hides keys; or None.
        is_masked: whether it hides others than keys after a query.
        causal: whether it hides those.
        rate: of dropout, or None.
        seed: int32 `[2]`, of dropout.

    Returns:
        outputs `[B, N, T, Hv]`.
    """
    way = _choose_way(query, key, (key_table, value_table), reach, query_offset, causal)
    run = _attend.python_function if tf.executing_eagerly() else _attend
    tensors = [
        x if x is None else tf.convert_to_tensor(x)
        for x in (query, key, value, key_table, value_table, mask)
    ]
    # Otherwise a query may stand before all keys; where there are diagonals none does.
    is_behind = isinstance(query_offset, int) and query_offset >= 0
    return run(
        *tensors,
        tf.cast(query_offset, tf.int32),
        way,
        _stretch(ops.shape(key)[2]),
        reach,
        is_masked,
        causal,
        is_behind,
        rate,
        seed,
    )


def _choose_way(query, key, tables, reach, query_offset, causal):
    """Which of `_ways`: an int, or a scalar tensor."""
    way = has_diagonals(query, key, reach, query_offset, causal)
    way = int(way) if isinstance(way, bool) else tf.cast(way, tf.int32)
    if not _may_be_triangle(tables, reach, causal):
        return way
    length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
    is_triangle = (length_q == length_k) & (length_q <= LONGEST_TRIANGLE) & (query_offset == 0)
    if isinstance(is_triangle, bool):
        return 2 if is_triangle else way
    return tf.where(is_triangle, 2, way)


def _may_be_triangle(tables, reach, causal):
    return causal and reach > 0 and all(x is None or len(x.shape) == 2 for x in tables)


def _needs_no_stretches(reach, causal):
    """Whether later keys are nobody's concern."""
    # A single diagonal is another thing for TensorFlow; what is computed of hidden keys does no harm.
    return causal and reach > 1


def _stretch(length_k):
    """Number of keys of a stretch, an int or a scalar tensor."""
    if isinstance(length_k, int):
        return SHORT_STRETCH if length_k <= LONGEST_SHORT else LONG_STRETCH
    return tf.where(length_k <= LONGEST_SHORT, SHORT_STRETCH, LONG_STRETCH)


# A function of its own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _attend(
    query,
    key,
    value,
    key_table,
    value_table,
    mask,
    query_offset,
    way,
    stretch,
    reach,
    is_masked,
    causal,
    is_behind,
    rate,
    seed,
):
    # Weights of a query without keys are of no meaning: its outputs are zeros instead, and so is what comes back.
    sees = _sees(mask, query) if is_masked else None
    ways = _ways(
        query,
        key,
        mask,
        sees,
        (key_table, value_table),
        query_offset,
        stretch,
        reach,
        causal,
        is_behind,
    )
    is_given = [x is not None for x in (key_table, value_table)]

    def by_the_way(function, tables, *args):
        """What a function gives of the chosen way's terms of both tables, and of what sees a key."""

        def of(make):
            make_terms, sees = make()
            rest = iter(tables)
            return function(
                *(make_terms(next(rest)) if given else NoTerms() for given in is_given), sees, *args
            )

        branches = [functools.partial(of, make) for make in ways]
        return branches[way]() if isinstance(way, int) else tf.switch_case(way, branches)

    @tf.custom_gradient
    def run(query, key, value, *tables):
        outputs, saved = by_the_way(_forward, tables, query, key, value, mask, rate, seed)
        outputs = tf.ensure_shape(outputs, (*query.shape[:-1], value.shape[-1]))
        saved = {name: tf.ensure_shape(x, [None] * 4) for name, x in saved.items()}

        def gradient(upstream):
            gradients = by_the_way(
                _backward, tables, query, key, value, outputs, saved, upstream, rate
            )
            return [
                tf.ensure_shape(x, like.shape)
                for x, like in zip(gradients, (query, key, value, *tables), strict=True)
            ]

        return outputs, gradient

    return run(query, key, value, *(x for x in (key_table, value_table) if x is not None))


def _sees(mask, query):
    """1 for a query that has keys, 0 for others, `[.., T, 1]`."""
    return tf.cast(tf.reduce_any(mask, -1, keepdims=True), query.dtype)


def _ways(query, key, mask, sees, tables, query_offset, stretch, reach, causal, is_behind):
    """By looked-up rows, along diagonals, and by rows of distances, where they can: functions that give (what makes terms, `sees`)."""
    length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]

    def by_rows():
        make_terms = functools.partial(
            RowTerms, relative_labels(length_q, length_k, reach, query_offset)
        )
        return make_terms, _sees(mask, query) if sees is None and causal and not is_behind else sees

    def along_diagonals():
        first = length_k - length_q
        diagonals = Diagonals(
            first + tf.range(length_q),
            reach,
            _needs_no_stretches(reach, causal),
            stretch,
            query.dtype,
        )
        return functools.partial(
            DiagonalTerms, diagonals, Band(diagonals, first, length_q, length_k)
        ), sees

    def by_distances():
        return functools.partial(TriangleTerms, labels_of_distances(length_q, reach)), sees

    ways = [by_rows, along_diagonals] if reach > 0 else [by_rows]
    return [*ways, by_distances] if _may_be_triangle(tables, reach, causal) else ways


def _forward(of_key, of_value, sees, query, key, value, mask, rate, seed):
    """(outputs `[B, N, T, Hv]`, what the gradient needs)."""
    front = of_key.in_front(query)
    scores, _ = of_key.completed(*of_key.multiplied(query, front, key))
    weights = _softmax(scores, mask)
    if sees is not None and (of_key.needs_zeros or of_value.needs_zeros):
        weights *= sees
    used = weights
    total = tf.ones([], used.dtype)
    if rate is not None:
        used = weights * _tensorflow_dropout.factors(tf.shape(weights), rate, seed, weights.dtype)
        total = tf.reduce_sum(used, -1, keepdims=True)
    near = of_value.near(used)
    collected = of_value.collect(used, near)
    outputs = _sum(tf.matmul(used, value), of_value.outputs(collected, total))
    outputs = outputs if sees is None else outputs * sees
    saved = {"front": front, "weights": weights, "near": near, "collected": collected}
    saved |= {} if rate is None else {"used": used, "total": total}
    return outputs, {name: x for name, x in saved.items() if x is not None}


def _backward(of_key, of_value, sees, query, key, value, outputs, saved, upstream, rate):
    """Gradients of query, key, value, and the tables."""
    upstream = upstream if sees is None else upstream * sees
    weights, near, collected = saved["weights"], saved.get("near"), saved.get("collected")
    used, total = saved.get("used", weights), saved.get("total", tf.ones([], weights.dtype))
    front = of_value.in_front(upstream)
    changes, near_changes = _changes(
        of_key, of_value, weights, used, near, value, outputs, upstream, front, rate
    )
    changed = of_key.collect(changes, near_changes)
    d_query = _sum(tf.matmul(changes, key), of_key.outputs(changed, None))
    d_key, d_value = (
        tf.matmul(changes, query, transpose_a=True),
        tf.matmul(used, upstream, transpose_a=True),
    )
    d_tables = (
        of_key.gradient(changed, saved["front"], None),
        of_value.gradient(collected, front, total),
    )
    return [d_query, d_key, d_value, *(x for x in d_tables if x is not None)]


def _changes(of_key, of_value, weights, used, near, value, outputs, upstream, front, rate):
    """The gradient of the scores, and what `completed` gives with it."""
    exact = _exact(weights)
    if of_key.is_short or of_value.is_short:
        pairs, missing = of_value.multiplied(upstream, front, value)
        changes = tf.cast(pairs, exact) * tf.cast(used, exact)
        changes -= tf.reduce_sum(changes, -1, keepdims=True) * tf.cast(weights, exact)
        return of_value.completed(tf.cast(changes, weights.dtype), missing)
    upstream_exact = tf.cast(upstream, exact)
    base = of_value.base_of(upstream_exact)
    weighted = tf.reduce_sum(upstream_exact * tf.cast(outputs, exact), -1, keepdims=True)
    if rate is None:
        base = _sum(-weighted, base)
    # No column of 16 bits, which would be rounded the same way for all keys.
    in_columns = exact == weights.dtype
    pairs, missing = of_value.multiplied(upstream, front, value, base if in_columns else None)
    changes = (pairs if in_columns else _sum(tf.cast(pairs, exact), base)) * tf.cast(used, exact)
    if rate is not None:
        changes -= weighted * tf.cast(weights, exact)
    changes = tf.cast(changes, weights.dtype)
    # What is near is added last, where it is read for its sums anyway.
    return of_value.completed(changes, None if missing is None else missing * near)


def _sum(x, y):
    """`x + y`, of which None stands for 0."""
    return x if y is None else x + y


def _softmax(scores, mask):
    """Softmax in float32 at least, of the entries that may be attended to."""
    exact = tf.cast(scores, _exact(scores))
    if mask is not None:
        exact = tf.where(mask, exact, tf.cast(HIDDEN, exact.dtype))
    return tf.cast(tf.nn.softmax(exact), scores.dtype)


def _exact(x):
    return tf.float32 if x.dtype.size == 2 else x.dtype
