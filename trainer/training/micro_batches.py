"""A device's part of a batch in pieces that it can compute at once."""

from collections.abc import Callable

import tensorflow as tf


def cut(batch: dict, device_tokens: int) -> dict:
    """Cuts the rows of a batch into pieces of like size.

    Rows of padding fill up the last piece. A batch without rows is one piece with one row of
    padding.

    Args:
        batch: ids by side, `[B, length of the side]`.
        device_tokens: tokens of the longer side, padding included, in a piece at most; a longer row
            is a separate piece.

    Returns:
        Ids by side, `[number of pieces, rows of a piece, length of the side]`.

    Example:

    >>> batch = {"inputs": tf.ones([5, 4], tf.int32), "targets": tf.ones([5, 3], tf.int32)}
    >>> pieces = cut(batch, device_tokens=9)
    >>> pieces["inputs"].shape.as_list(), pieces["targets"].shape.as_list()
    ([3, 2, 4], [3, 2, 3])
    """
    shapes = [tf.shape(ids) for ids in batch.values()]
    rows = shapes[0][0]
    longest = tf.reduce_max([shape[1] for shape in shapes])
    most = tf.maximum(device_tokens // tf.maximum(longest, 1), 1)
    count = tf.maximum(_divide_up(rows, most), 1)
    size = tf.maximum(_divide_up(rows, count), 1)
    missing = count * size - rows

    def stack(ids, length):
        return tf.reshape(tf.pad(ids, [[0, missing], [0, 0]]), [count, size, length])

    return {side: stack(ids, shape[1]) for (side, ids), shape in zip(batch.items(), shapes)}


def accumulate(compute: Callable, pieces: dict, like, states: list[tf.Tensor]):
    """The sums of what is computed from every piece, one piece after the other.

    Args:
        compute: `compute(piece, number) -> values, …, states`: values to sum, and some that are
            the same for every piece.
        pieces: as `cut` returns them.
        like: tensors or variables of the shapes and types of the values, in their structure.
        states: tensors of the shapes and types of the states.

    Returns:
        The sums, …, and the states.
    """
    count = tf.shape(next(iter(pieces.values())))[0]

    def body(number, totals, _):
        piece = {side: tf.gather(ids, number) for side, ids in pieces.items()}
        *values, after = compute(piece, number)
        return number + 1, tf.nest.map_structure(tf.add, totals, tuple(values)), after

    zeros = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), like)
    # Not several pieces at once: that they don't fit together is why there are pieces.
    _, totals, after = tf.while_loop(
        lambda number, *_: number < count,
        body,
        (tf.constant(0), zeros, states),
        parallel_iterations=1,
    )
    return *totals, after


def _divide_up(number, by):
    return -(-number // by)
