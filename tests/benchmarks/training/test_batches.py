"""Tests of the training benchmark's batches."""

import numpy as np

from benchmarks.training import batches


def test_make_batches_limits_tokens_and_write_batches_saves_them(tmp_path):
    made = batches.make_batches(("", ""), vocab_size=331, batch_tokens=67, max_length=41, count=3)
    assert len(made) == 3
    for inputs, targets in made:
        assert len(inputs) == len(targets)
        assert max(inputs.size, targets.size) <= 67
    arrays = np.load(batches.write_batches(tmp_path / "batches.npz", made))
    np.testing.assert_array_equal(arrays["targets_2"], made[2][1])


def test_count_tokens_ignores_padding():
    batch = np.array([[5, 1, 0], [4, 4, 1]]), np.array([[3, 1], [1, 0]])
    assert batches.count_tokens([batch]) == {"source": 5, "target": 3}
