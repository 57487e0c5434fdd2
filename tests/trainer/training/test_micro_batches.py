import numpy as np
import pytest
import tensorflow as tf

from trainer.training import batch_parts


def batch(rows, source_length=5, target_length=3):
    sizes = {"inputs": source_length, "targets": target_length}
    return {
        side: tf.reshape(tf.range(1, rows * length + 1), [rows, length])
        for side, length in sizes.items()
    }


@pytest.mark.parametrize(
    "rows, device_tokens, shape",
    [
        (7, 35, (1, 7)),
        (7, 34, (2, 4)),
        (7, 10, (4, 2)),
        (7, 9, (7, 1)),
        (7, 1, (7, 1)),  # an entry above device_tokens forms its own micro-batch
        (11, 20, (3, 4)),
        (1, 100, (1, 1)),
        (0, 100, (1, 1)),
    ],
)
def test_split_makes_few_micro_batches_of_equal_size(rows, device_tokens, shape):
    full = batch(rows)
    parts = batch_parts.split(full, device_tokens)
    for side, ids in parts.items():
        assert ids.shape == (*shape, full[side].shape[1])
        joined = tf.reshape(ids, [-1, ids.shape[-1]])
        np.testing.assert_array_equal(joined[:rows], full[side])
        assert not np.any(joined[rows:])


def test_split_counts_tokens_of_the_longer_side():
    parts = batch_parts.split(batch(6, source_length=2, target_length=5), 10)
    assert parts["inputs"].shape == (3, 2, 2)


@pytest.mark.parametrize("in_graph", [False, True])
def test_accumulate_sums_values_and_returns_the_last_states(in_graph):
    def compute(part, number):
        total = tf.cast(tf.reduce_sum(part["inputs"]), tf.float32)
        return total, [total * tf.cast(number, tf.float32)], [tf.constant(11)]

    def run(full):
        parts, like = batch_parts.split(full, 10), (tf.zeros([]), [tf.zeros([])])
        return batch_parts.accumulate(compute, parts, like, [tf.constant(0)])

    total, (weighted,), (state,) = (tf.function(run) if in_graph else run)(batch(5))
    # Ids 1–10, 11–20, and 21–25 with an entry of padding.
    assert (float(total), float(weighted), int(state)) == (325, 155 + 2 * 115, 11)
