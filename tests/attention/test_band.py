"""Compares the geometry of the band with all distances of small matrices."""

import itertools

import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention.band import DistanceCounts, Distances

SIZES = range(5)
DISTANCES = [Distances(*pair) for pair in itertools.product(range(4), repeat=2)]


def matrix(num_queries, num_keys, offset):
    """Returns the distances `[T, S]`."""
    return np.arange(num_keys) - np.arange(num_queries)[:, None] - offset


@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_band_keys(distances):
    extended = distances.extended()
    assert extended == (max(distances.left, 1), max(distances.right, 1))
    assert distances.extended(causal=True, least=2) == (max(distances.left, 2), 1)
    left, right = extended
    for num_queries, num_keys, offset in itertools.product(range(1, 5), SIZES, range(-9, 10)):
        found = matrix(num_queries, num_keys, offset)
        is_band = ((found > -left) & (found < right)).any(0)
        start, width = extended.existing_band_keys(offset, num_queries, num_keys)
        assert is_band[start : start + width].all()
        assert (found[:, :start] <= -left).all()
        assert (found[:, start + width :] >= right).all()
        lowest, highest = extended.offset_limits(num_queries, num_keys)
        assert offset > lowest or (found >= right).all()
        assert offset < highest or (found <= -left).all()


@pytest.mark.parametrize("distances", [Distances(1, 3), Distances(3, 1), Distances(2, 2)], ids=str)
def test_band_keys_of_an_unknown_position(distances):
    widths = set()
    for offset in range(-9, 10):
        found, position = matrix(2, 7, offset), ops.convert_to_tensor(offset, dtype="int32")
        start, width = distances.existing_band_keys(position, 2, 7)
        start = int(ops.convert_to_numpy(start))
        widths.add(width)
        assert (found[:, :start] <= -distances.left).all()
        assert (found[:, start + width :] >= distances.right).all()
    assert widths == {distances.left + distances.right}


@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_counts_of_distances(distances):
    left, right = distances
    for num_queries, num_keys, offset in itertools.product(range(1, 5), range(1, 5), range(-9, 10)):
        found = matrix(num_queries, num_keys, offset)
        counts = DistanceCounts.of(distances, num_queries, num_keys, offset)
        ids = [0] * counts.left + list(range(counts.first, counts.last))
        ids += [distances.num_ids - 1] * counts.right
        expected = np.clip(np.arange(found.min(), found.max() + 1), -left, right) + left
        assert ids == expected.tolist(), (num_queries, num_keys, offset)
        assert counts.start is None


def test_distances_of_an_int_and_of_a_pair():
    assert Distances.of(3) == Distances.of((3, 3)) == Distances.of([3, 3]) == (3, 3)
    assert Distances.of((64, 8)).num_ids == 73 and Distances(64, 8).num_diagonals == 71
