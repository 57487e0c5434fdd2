"""Micro-batches, the parts into which a device's batch is split to save memory."""

from collections.abc import Callable

import tensorflow as tf


def split(batch: dict, device_tokens: int) -> dict:
    """Splits a batch into micro-batches of equal size.

    The last micro-batch is filled with entries of padding. An empty batch gives one entry of
    padding.

    Args:
        batch: ids by side, `[B, length of the side]`.
        device_tokens: maximum number of tokens of the longer side in a micro-batch, including
            padding. A longer batch entry forms its own micro-batch.

    Returns:
        Ids by side, `[number of micro-batches, batch entries, length of the side]`.

    Example:

    >>> batch = {"inputs": tf.ones([5, 4], tf.int32), "targets": tf.ones([5, 3], tf.int32)}
    >>> parts = split(batch, device_tokens=9)
    >>> parts["inputs"].shape.as_list(), parts["targets"].shape.as_list()
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


def accumulate(compute: Callable, parts: dict, like, states: list[tf.Tensor]):
    """Returns the sums of a function's values over all micro-batches.

    Args:
        compute: `compute(part, number) -> (values, ..., states)`. The values are summed. The states
            are equal for all micro-batches.
        parts: micro-batches, from `split`.
        like: tensors or variables with the structure, shapes and dtypes of the values.
        states: tensors with the shapes and dtypes of the states.

    Returns:
        The sums, ..., and the states of the last micro-batch.
    """
    count = tf.shape(next(iter(parts.values())))[0]

    def body(number, totals, _):
        part = {side: tf.gather(ids, number) for side, ids in parts.items()}
        *values, after = compute(part, number)
        return number + 1, tf.nest.map_structure(tf.add, totals, tuple(values)), after

    zeros = tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), like)
    # No parallel iterations, so that only one micro-batch is in memory.
    _, totals, after = tf.while_loop(
        lambda number, *_: number < count,
        body,
        (tf.constant(0), zeros, states),
        parallel_iterations=1,
    )
    return *totals, after


def _divide_up(number, by):
    return -(-number // by)
