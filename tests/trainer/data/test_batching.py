"""Tests of training and evaluation batches: content, lengths, padding, and skipped pairs."""

import numpy as np
import pytest

from trainer.data import batching
from trainer.data.batching import (
    bucket_boundaries,
    evaluation_batches,
    report_lengths,
    training_batches,
)
from trainer.data.encoding import EncodedPairs

SETTINGS = {"batch_tokens": 127, "max_length": 31, "seed": 5}


def take(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def names(batch):
    """Returns the first ids of a batch's sources, which identify the pairs."""
    ids = batch["inputs"][:, 0]
    return ids[ids > 0].tolist()


def test_batches_have_ids_of_both_sides(pairs):
    for batch in take(training_batches(pairs, **SETTINGS), 61):
        assert sorted(batch) == ["inputs", "targets"]
        assert {ids.dtype for ids in batch.values()} == {np.dtype("int32")}
        for source, target in zip(batch["inputs"], batch["targets"]):
            row = source[0] - 10
            assert target[0] == source[0]
            for ids, side in ((source, pairs.sources), (target, pairs.targets)):
                text = side.lengths[row] - 1
                assert ids[:text].tolist() == [source[0]] * text
                assert ids[text] == 1 and not ids[text + 1 :].any()
        for side in batch.values():
            assert side[:, -1].any(), "padded beyond the longest sentence"


def test_texts_are_batches_of_targets_only(pairs, make_pairs):
    texts = EncodedPairs(None, pairs.targets)
    both = EncodedPairs(pairs.targets, pairs.targets)
    for batches in (
        lambda pairs: training_batches(pairs, **SETTINGS),
        lambda pairs: training_batches(pairs, **SETTINGS, pad_to_boundary=True, row_multiple=4),
        lambda pairs: evaluation_batches(pairs, 90),
    ):
        for found, expected in zip(take(batches(texts), 61), take(batches(both), 61)):
            assert [*found] == ["targets"]
            np.testing.assert_array_equal(found["targets"], expected["targets"])
    report = report_lengths(texts, 31)
    expected = f"{report.used} of 307 texts are used. Skipped: {report.too_long} longer than 31 "
    assert str(report) == f"{expected}tokens, 0 blank."
    long = EncodedPairs(None, make_pairs([9], [9]).targets)
    with pytest.raises(ValueError, match="Expected training texts of at most 8 tokens. Received"):
        training_batches(long, 127, 8, seed=5)


def test_pad_to_boundary_gives_one_shape_per_bucket(pairs):
    plain = take(training_batches(pairs, **SETTINGS), 83)
    padded = take(training_batches(pairs, **SETTINGS, pad_to_boundary=True), 83)
    shapes = set()
    for batch, filled in zip(plain, padded, strict=True):
        rows, length = filled["targets"].shape
        assert filled["inputs"].shape == (rows, length)
        assert length in bucket_boundaries(31) and rows == 127 // length
        shapes.add((rows, length))
        assert names(filled) == names(batch)
        for side, ids in batch.items():
            assert np.count_nonzero(filled[side]) == np.count_nonzero(ids)
    buckets = np.searchsorted(bucket_boundaries(31), pairs.lengths[pairs.lengths <= 31])
    assert len(shapes) == len(np.unique(buckets))


def test_rows_are_a_multiple_with_as_many_pairs(pairs):
    """The shards of all devices then have the same shape. Pairs of a batch stay the same."""
    options = {"pad_to_boundary": True}
    plain = take(training_batches(pairs, **SETTINGS, **options), 83)
    rounded = take(training_batches(pairs, **SETTINGS, **options, row_multiple=4), 83)
    changed = 0
    for batch, filled in zip(plain, rounded, strict=True):
        rows, length = batch["targets"].shape
        assert filled["targets"].shape == (-(-rows // 4) * 4, length)
        changed += len(filled["targets"]) > rows
        for side, ids in batch.items():
            np.testing.assert_array_equal(filled[side][:rows], ids)
            assert not filled[side][rows:].any()
    assert 0 < changed < 83


def test_evaluation_batches_have_all_pairs_in_order(pairs):
    dataset = evaluation_batches(pairs, batch_tokens=127)
    batches = list(dataset.as_numpy_iterator())
    assert dataset.cardinality() == len(batches)
    assert sum(map(names, batches), []) == (np.arange(307) + 10).tolist()
    for batch in batches:
        assert len(batch["targets"]) * max(ids.shape[1] for ids in batch.values()) <= 127
    tokens = sum(np.count_nonzero(batch["targets"]) for batch in batches)
    assert tokens == pairs.targets.lengths.sum()


def test_evaluation_batches_with_a_pair_above_batch_tokens(make_pairs):
    pairs = make_pairs([3, 2, 5, 2], [3, 7, 29, 2])
    batches = list(evaluation_batches(pairs, batch_tokens=17).as_numpy_iterator())
    assert list(map(names, batches)) == [[10, 11], [12], [13]]


@pytest.mark.parametrize(
    ("batch_tokens", "max_length", "message"),
    [
        (127, 1, "training pairs of at most 1 tokens per side. Received: none. 0 of 307 pairs"),
        (29, 31, "batch_tokens of at least 31, .* which has 31 tokens. Received: 29. Raise"),
    ],
)
def test_settings_below_the_lengths_of_pairs_raise(pairs, batch_tokens, max_length, message):
    with pytest.raises(ValueError, match=f"Expected {message}"):
        training_batches(pairs, batch_tokens, max_length, seed=0)


def test_bucket_boundaries_equal_tensor2tensor():
    assert bucket_boundaries(7).tolist() == [7]
    assert bucket_boundaries(8).tolist() == [8]
    assert bucket_boundaries(64).tolist() == [
        *range(8, 21),
        *(22, 24, 26, 28, 30, 33, 36, 39, 42, 46, 50, 55, 60, 64),
    ]


@pytest.mark.parametrize("pairs_per_pass", [batching._PAIRS_PER_PASS, 3])
def test_report_lengths_counts_skipped_pairs_and_buckets(make_pairs, monkeypatch, pairs_per_pass):
    monkeypatch.setattr(batching, "_PAIRS_PER_PASS", pairs_per_pass)
    pairs = make_pairs([2, 9, 1, 12, 1, 3, 11], [3, 13, 4, 4, 40, 1, 11])
    report = report_lengths(pairs, max_length=11)
    assert (report.pairs, report.used, report.too_long, report.blank) == (7, 2, 3, 2)
    assert str(report) == (
        "2 of 7 pairs are used. Skipped: 3 longer than 11 tokens, 2 with a blank side."
    )
    # Buckets 8, 10 and 11. The others are too long or blank.
    pairs = make_pairs([2, 8, 10, 11, 12, 1, 3], [3, 4, 4, 9, 40, 1, 1])
    assert report_lengths(pairs, max_length=11).buckets == 3
