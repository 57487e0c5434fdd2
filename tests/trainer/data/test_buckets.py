"""Tests of bucket boundaries and of the report of skipped pairs."""

import pytest

from trainer.data import batching
from trainer.data.batching import bucket_boundaries, report_lengths


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
