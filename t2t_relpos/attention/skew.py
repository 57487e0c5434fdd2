"""Between "by relative position" and "by key", without a gather or a [T, S, H] tensor.

A row of `2K + 1` entries by label is stretched to all `T + S - 1` distances
that occur (the ends repeat), and read back with a row width one smaller than
it was written with: each row then starts one entry earlier than the row
above, which is what `j - i` asks for.
"""

from keras import ops


def _spans(length_q, length_k, k, query_offset):
    """How many distances lie left of, in, and right of the table's range.

    Distances run from `-(T - 1) - offset` to `S - 1 - offset`. Returns
    (left, first label, last label + 1, right).
    """
    total = length_q + length_k - 1
    lowest = 1 - length_q - query_offset
    highest = length_k - 1 - query_offset
    if all(isinstance(n, int) for n in (length_q, length_k, query_offset)):
        least, most = min, max
    else:
        least, most = ops.minimum, ops.maximum
    left = most(0, least(total, -k - lowest))
    right = most(0, least(total, highest - k))
    first = most(0, least(2 * k + 1, lowest + k))
    return left, first, first + (total - left - right), right


def _columns(rows, column, count):
    """Column `column` of `[..., T, R]`, `count` times: `[..., T, count]`."""
    shape = list(ops.shape(rows))
    return ops.broadcast_to(rows[..., column : column + 1], (*shape[:-1], count))


def label_to_key(rows, length_k, query_offset):
    """Entries by label -> entries by key: `out[.., i, j] = rows[.., i, label(i, j)]`.

    Args:
        rows: `[B, N, T, 2K + 1]`, entries of every query by label.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.

    Returns:
        `[B, N, T, S]`.
    """
    batch, heads, length_q, num_labels = ops.shape(rows)
    if num_labels == 1:
        return _columns(rows, 0, length_k)
    k = (num_labels - 1) // 2
    left, first, last, right = _spans(length_q, length_k, k, query_offset)
    width = length_q + length_k - 1
    # One column more than there are distances: room for the shift.
    stretched = ops.concatenate(
        [
            _columns(rows, 0, left),
            rows[..., first:last],
            _columns(rows, num_labels - 1, right + 1),
        ],
        axis=-1,
    )
    flat = ops.reshape(stretched, (batch, heads, length_q * (width + 1)))
    flat = flat[..., length_q - 1 : length_q - 1 + length_q * width]
    return ops.reshape(flat, (batch, heads, length_q, width))[..., :length_k]


def key_to_label(weights, num_labels, query_offset):
    """Sums by label: `out[.., i, r]` = sum of `weights[.., i, j]` with label `r`.

    The transpose of `label_to_key`.

    Args:
        weights: `[B, N, T, S]`.
        num_labels: rows of the table, 2K + 1.
        query_offset: key position of query 0, an int or a scalar tensor.

    Returns:
        `[B, N, T, 2K + 1]`.
    """
    batch, heads, length_q, length_k = ops.shape(weights)
    if num_labels == 1:
        return ops.sum(weights, axis=-1, keepdims=True)
    k = (num_labels - 1) // 2
    left, first, last, right = _spans(length_q, length_k, k, query_offset)
    width = length_q + length_k - 1

    def zeros(*shape):
        return ops.zeros(shape, dtype=weights.dtype)

    padded = ops.concatenate([weights, zeros(batch, heads, length_q, length_q - 1)], axis=-1)
    flat = ops.reshape(padded, (batch, heads, length_q * width))
    flat = ops.concatenate(
        [zeros(batch, heads, length_q - 1), flat, zeros(batch, heads, 1)], axis=-1
    )
    by_distance = ops.reshape(flat, (batch, heads, length_q, width + 1))
    middle = by_distance[..., left : width - right]
    far_left = ops.sum(by_distance[..., :left], axis=-1, keepdims=True)
    far_right = ops.sum(by_distance[..., width - right :], axis=-1, keepdims=True)
    sums = ops.concatenate(
        [
            zeros(batch, heads, length_q, first),
            middle,
            zeros(batch, heads, length_q, num_labels - last),
        ],
        axis=-1,
    )
    # The ends take what was clipped onto them.
    return ops.concatenate(
        [sums[..., :1] + far_left, sums[..., 1:-1], sums[..., -1:] + far_right], axis=-1
    )
