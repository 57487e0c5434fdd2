"""Compares the runs of a score matrix with all distances of small matrices."""

import itertools

import numpy as np
import pytest

from t2t_relpos.attention.band import (
    Distances,
    Runs,
    masked_distances,
    resize_table,
    tail_parts,
)
from t2t_relpos.attention.call import AttentionCall

SIZES = range(5)
DISTANCES = [Distances(*pair) for pair in itertools.product(range(4), repeat=2)]


def matrix(num_queries, num_keys, offset):
    """Returns the distances `[T, S]`."""
    return np.arange(num_keys) - np.arange(num_queries)[:, None] - offset


@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_runs_of_keys(distances):
    extended = distances.extended()
    assert extended == (max(distances.left, 1), max(distances.right, 1))
    assert distances.extended(2, 0) == (max(distances.left, 2), distances.right)
    left, right = extended
    for num_queries, num_keys, offset in itertools.product(range(1, 5), SIZES, range(-9, 10)):
        found = matrix(num_queries, num_keys, offset)
        in_window = ((found > -left) & (found < right)).any(0)
        start, width, position, _ = Runs.of(extended, offset, num_queries, num_keys)
        assert in_window[start : start + width].all()
        assert (found[:, :start] <= -left).all()
        assert (found[:, start + width :] >= right).all()
        assert start + position == offset


@pytest.mark.parametrize("distances", [Distances(1, 3), Distances(3, 1), Distances(2, 2)], ids=str)
@pytest.mark.parametrize("ends", [None, (-9, 9)])
def test_runs_of_blocks_have_one_width(ends, distances):
    positions = []
    for offset in range(-9, 10):
        found = matrix(2, 7, offset)
        start, width, position, limits = Runs.of_block(distances, offset, 2, 7, ends)
        assert width == distances.left + distances.right and start + position == offset
        assert (found[:, :start] <= -distances.left).all()
        assert (found[:, start + width :] >= distances.right).all()
        positions.append(position)
        assert position > limits[0] or (found[:, start : start + width] >= distances.right).all()
        assert position < limits[1] or (found[:, start : start + width] <= -distances.left).all()
    assert ends is None or limits == (min(positions), max(positions))


@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_runs_of_distances(distances):
    left, right = distances
    for num_queries, num_keys, offset in itertools.product(range(1, 5), range(1, 5), range(-9, 10)):
        found = matrix(num_queries, num_keys, offset)
        runs, first = Runs.of_distances(distances, num_queries, num_keys, offset)
        ids = [0] * runs.start + list(range(first, first + runs.width))
        ids += [distances.num_ids - 1] * (num_queries + num_keys - 1 - len(ids))
        expected = np.clip(np.arange(found.min(), found.max() + 1), -left, right) + left
        assert ids == expected.tolist(), (num_queries, num_keys, offset)


@pytest.mark.parametrize("window", [None, 5, 6, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_tail_parts_have_every_pair_once(causal, window):
    left, right = distances = Distances(2, 3)
    for num_queries, num_keys, offset in itertools.product((1, 2, 12), (1, 5, 11), range(-9, 16)):
        options = {"causal": causal, "query_offset": offset, "sliding_window": window}
        counts = np.zeros((num_queries, num_keys), int)
        call = AttentionCall(num_queries, num_keys, distances, **options)
        for part in tail_parts(call, distances):
            queries = part.first_query + np.arange(part.num_queries)
            keys = part.first_key + np.arange(part.num_keys)
            step = -1 if part.is_reversed else 1
            blocks = (x[::step].reshape(part.num_blocks, -1) for x in (queries, keys))
            for of_queries, of_keys in zip(*blocks, strict=True):
                for i, query in enumerate(of_queries):
                    for key in of_keys[: i + 1] if part.is_causal else of_keys:
                        if 0 <= query < num_queries and 0 <= key < num_keys:
                            counts[query, key] += 1
        found = matrix(num_queries, num_keys, offset)
        expected = (found <= -left) | (False if causal else found >= right)
        np.testing.assert_array_equal(counts, expected & (np.abs(found) < (window or 99)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_keys_that_queries_attend_to(causal, window):
    options = {"causal": causal, "sliding_window": window}
    for num_queries, num_keys, offset in itertools.product(range(1, 5), SIZES, range(-9, 10)):
        masked = masked_distances(AttentionCall(num_queries, num_keys, None, **options))
        found, positions = matrix(num_queries, num_keys, offset), offset + np.arange(num_queries)
        expected = np.abs(found) < (window or 100)
        if causal:
            expected &= found <= 0
        masks = masked.masks(positions[:, None], np.arange(num_keys))
        np.testing.assert_array_equal(
            np.logical_and.reduce([np.ones(found.shape, bool), *masks]), expected
        )
        first, end = masked.existing_keys(offset, num_queries, num_keys)
        keys = np.flatnonzero(expected.any(0))
        assert first == end if not len(keys) else (first, end) == (keys[0], keys[-1] + 1)


def test_resized_tables_have_the_rows_of_all_distances():
    table = np.arange(6.0)[:, None]
    for old, new in itertools.product([Distances(3, 2), Distances(0, 5)], DISTANCES):
        rows = np.asarray(resize_table(table, old, new))[:, 0]
        expected = np.clip(np.arange(-new.left, new.right + 1), -old.left, old.right) + old.left
        assert rows.tolist() == expected.tolist()


def test_distances_of_an_int_and_of_a_pair():
    assert Distances.of(3) == Distances.of((3, 3)) == Distances.of([3, 3]) == (3, 3)
    assert Distances.of((64, 8)).num_ids == 73
