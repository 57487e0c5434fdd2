import numpy as np
import pytest
import tensorflow as tf

from trainer.training import micro_batches


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
        (7, 1, (7, 1)),  # a row that is too long is a micro-batch
        (11, 20, (3, 4)),
        (1, 100, (1, 1)),
        (0, 100, (1, 1)),
    ],
)
def test_micro_batches_are_as_few_as_fit_and_of_one_size(rows, device_tokens, shape):
    whole = batch(rows)
    made = micro_batches.split(whole, device_tokens)
    for side, ids in made.items():
        assert ids.shape == (*shape, whole[side].shape[1])
        np.testing.assert_array_equal(tf.reshape(ids, [-1, ids.shape[-1]])[:rows], whole[side])
        assert not np.any(tf.reshape(ids, [-1, ids.shape[-1]])[rows:])


def test_the_longer_side_counts():
    assert micro_batches.split(batch(6, source_length=2, target_length=5), 10)["inputs"].shape == (
        3,
        2,
        2,
    )


@pytest.mark.parametrize("in_graph", [False, True])
def test_values_are_added_up_and_states_are_the_last(in_graph):
    def compute(part, number):
        total = tf.cast(tf.reduce_sum(part["inputs"]), tf.float32)
        return total, [total * tf.cast(number, tf.float32)], [tf.constant(11)]

    def run(whole):
        return micro_batches.accumulate(
            compute,
            micro_batches.split(whole, 10),
            (tf.zeros([]), [tf.zeros([])]),
            [tf.constant(0)],
        )

    total, (weighted,), (state,) = (tf.function(run) if in_graph else run)(batch(5))
    # Rows 1–10, 11–20 and 21–25 with one row of padding.
    assert (float(total), float(weighted), int(state)) == (325, 155 + 2 * 115, 11)
