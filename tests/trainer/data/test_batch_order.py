"""Tests of the batch order of corpora in several chunks, and of its memory use."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from trainer.data import batching
from trainer.data.batching import (
    SHUFFLED_PAIRS,
    BatchOrder,
    Chunks,
    report_lengths,
    training_batches,
)
from trainer.data.encoding import EncodedPairs, IdSequences

SETTINGS = {"batch_tokens": 127, "max_length": 31, "seed": 5}
CHUNK = 67
# A corpus of 307 pairs in several chunks, and in one.
in_chunks = pytest.mark.parametrize(("chunk_pairs", "count"), [(CHUNK, 5), (1000, 1)])


def epoch_of(order, epoch):
    first = epoch * order.batches_per_epoch
    return [order.batch(step) for step in range(first, first + order.batches_per_epoch)]


def rows_of(batches):
    return [rows.tolist() for rows, _ in batches]


@pytest.mark.parametrize(
    ("pairs", "size"), [(1, 1), (7, 7), (8, 7), (307, 67), (1009, 1), (5003, 769), (1031, 512)]
)
def test_chunks_partition_a_corpus(pairs, size):
    chunks = Chunks(pairs, size)
    rows = [chunks.rows(chunk) for chunk in range(len(chunks))]
    assert sorted(np.concatenate(rows)) == list(range(pairs))
    assert max(map(len, rows)) <= size
    assert all((np.diff(one) > 0).all() for one in rows)
    assert min(map(len, rows)) >= max(map(len, rows)) - chunks.block


def test_chunks_have_pairs_from_all_parts_of_a_corpus():
    chunks = Chunks(50_021, 1009)
    for chunk in range(len(chunks)):
        part = np.bincount(chunks.rows(chunk) // 10_005, minlength=5)[:5]
        assert part.min() > 0.95 * len(chunks.rows(chunk)) / 5


def test_batches_of_one_chunk_equal_those_of_earlier_versions(make_pairs):
    sizes = np.array([2 + i * i % 37 for i in range(307)])
    pairs = make_pairs(sizes, sizes + np.arange(307) % 6, end_in_eos=False)
    assert len(pairs) < SHUFFLED_PAIRS
    digest = hashlib.sha256()
    for start in (0, 1000):
        batches = training_batches(pairs, **SETTINGS, start_step=start).take(150)
        for batch in batches.as_numpy_iterator():
            digest.update(batch["inputs"].tobytes() + batch["targets"].tobytes())
    # A run that was started with an earlier version resumes with the same batches.
    assert digest.hexdigest() == "1ef8f8f0df1da8c6b41a0dad19ab60cdef36a2a346bb65b51269de415744a572"


@in_chunks
def test_epochs_have_all_used_pairs_once_in_different_orders(pairs, chunk_pairs, count):
    settings = SETTINGS | {"chunk_pairs": chunk_pairs}
    order = BatchOrder(pairs, **settings)
    assert len(order.chunks) == count
    first, second = (rows_of(epoch_of(order, epoch)) for epoch in (0, 1))
    used = np.flatnonzero(pairs.lengths <= 31).tolist()
    assert 200 < len(used) < 307
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == used
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))
    # The order depends on the seed only.
    assert first == rows_of(epoch_of(BatchOrder(pairs, **settings), 0))
    assert first != rows_of(epoch_of(BatchOrder(pairs, **settings | {"seed": 6}), 0))


def test_epochs_visit_the_same_chunks_in_different_orders(pairs):
    order = BatchOrder(pairs, **SETTINGS, chunk_pairs=CHUNK)
    chunk_of = {row: chunk for chunk in range(5) for row in order.chunks.rows(chunk).tolist()}
    orders = []
    for epoch in range(3):
        chunks = [{chunk_of[row] for row in rows} for rows in rows_of(epoch_of(order, epoch))]
        assert all(len(one) == 1 for one in chunks)
        visited = [min(one) for one in chunks]
        changes = sum(a != b for a, b in zip(visited, visited[1:]))
        assert changes == 4
        assert np.bincount(visited).tolist() == order.batches_per_chunk.tolist()
        orders.append(tuple(dict.fromkeys(visited)))
    assert len(set(orders)) > 1


@in_chunks
def test_all_batches_of_a_chunk_but_one_are_full(pairs, chunk_pairs, count):
    order = BatchOrder(pairs, **SETTINGS, chunk_pairs=chunk_pairs)
    batches = epoch_of(order, 0)
    assert sum(len(rows) < 127 // boundary for rows, boundary in batches) <= count
    for rows, boundary in batches:
        assert pairs.lengths[rows].max() <= boundary and len(rows) * boundary <= 127


def test_orders_in_two_chunks_differ(make_pairs):
    equal_lengths = make_pairs(np.full(134, 7), np.full(134, 7))
    order = BatchOrder(equal_lengths, **SETTINGS, chunk_pairs=CHUNK)
    shuffled = [np.concatenate([rows for rows, _ in order.chunk_batches(0, i)]) for i in (0, 1)]
    positions = [np.searchsorted(order.chunks.rows(i), rows) for i, rows in enumerate(shuffled)]
    assert positions[0].tolist() != positions[1].tolist()


@in_chunks
@pytest.mark.parametrize("start_step", [0, 17, 1009])
def test_dataset_starts_at_any_step(pairs, start_step, chunk_pairs, count):
    order = BatchOrder(pairs, **SETTINGS, chunk_pairs=chunk_pairs)
    for step in range(max(0, start_step - 40), start_step):
        order.batch(step)
    dataset = training_batches(pairs, **SETTINGS, start_step=start_step, chunk_pairs=chunk_pairs)
    for step, batch in enumerate(dataset.take(5).as_numpy_iterator(), start=start_step):
        assert (batch["inputs"][:, 0] - 10).tolist() == order.batch(step)[0].tolist()


def test_lengths_in_a_batch_are_similar(pairs):
    epoch = rows_of(epoch_of(BatchOrder(pairs, **SETTINGS, chunk_pairs=1000), 0))
    spread = [np.ptp(pairs.lengths[rows]) for rows in epoch]
    assert np.mean(spread) < 2
    first = [rows[0] for rows in epoch]
    assert first != sorted(first, key=lambda row: pairs.lengths[row])


def test_chunk_without_used_pairs_has_no_batches(make_pairs):
    sizes = np.full(6, 5)
    sizes[1::2] = 40
    order = BatchOrder(make_pairs(sizes, sizes), **SETTINGS, chunk_pairs=3)
    assert order.batches_per_chunk.tolist() == [1, 0]
    assert [sorted(order.batch(step)[0].tolist()) for step in range(3)] == 3 * [[0, 2, 4]]


def test_memory_does_not_depend_on_corpus_size(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "_PAIRS_PER_PASS", 4096)

    def peak(count, steps):
        """Returns the peak of pairs whose offsets are mapped, like those of `encode_pairs`."""
        sizes = np.random.default_rng(3).integers(2, 33, size=count)
        np.save(tmp_path / "offsets.npy", np.cumsum([0, *sizes]))
        offsets = np.load(tmp_path / "offsets.npy", mmap_mode="r")
        side = IdSequences(np.broadcast_to(np.int32(7), sizes.sum()), offsets)
        pairs = EncodedPairs(side, side)
        tracemalloc.start()
        report_lengths(pairs, 31)
        order = BatchOrder(pairs, batch_tokens=509, max_length=31, seed=0, chunk_pairs=8192)
        for step in range(0, order.batches_per_epoch, order.batches_per_epoch // steps):
            rows, _ = order.batch(step)
            pairs.sources.padded(rows)
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(30_011, 3)
    assert peak(300_007, 31) < 1.3 * peak(30_011, 31)
