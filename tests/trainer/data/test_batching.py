"""Batches: every pair once an epoch, of like length, in an order that seed and step decide."""

import numpy as np
import pytest

from trainer.data.batching import evaluation_batches, training_batches
from trainer.data.buckets import bucket_boundaries, report_lengths
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text

SETTINGS = {"batch_tokens": 127, "max_length": 31, "seed": 5}


def take(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def names(batch):
    """Which pairs a batch holds."""
    ids = batch[0]["inputs"][:, 0]
    return ids[ids > 0].tolist()


def epochs(pairs, count, **settings):
    """The names of the pairs in `count` epochs, batch by batch."""
    used = report_lengths(pairs, SETTINGS["max_length"]).used
    result = []
    iterator = training_batches(pairs, **SETTINGS | settings).as_numpy_iterator()
    for _ in range(count):
        batches = []
        while sum(map(len, batches)) < used:
            batches.append(names(next(iterator)))
        result.append(batches)
    return result


def test_batches_hold_the_pairs_with_weights_for_tokens(pairs):
    for inputs, targets, weights in take(training_batches(pairs, **SETTINGS), 61):
        assert sorted(inputs) == ["inputs", "targets"]
        np.testing.assert_array_equal(inputs["targets"], targets)
        np.testing.assert_array_equal(weights, np.float32(targets != 0))
        assert (inputs["inputs"].dtype, targets.dtype, weights.dtype) == (
            np.int32,
            np.int32,
            np.float32,
        )
        for source, target in zip(inputs["inputs"], targets):
            row = source[0] - 10
            assert target[0] == source[0]
            for ids, side in ((source, pairs.sources), (target, pairs.targets)):
                length = side.lengths[row]
                assert (
                    (ids[: length - 1] == source[0]).all()
                    and ids[length - 1] == 1
                    and not ids[length:].any()
                )
        for side in (inputs["inputs"], targets):
            assert side[:, -1].any(), "wider than the longest sentence"


def test_every_pair_once_an_epoch_in_another_order(pairs):
    first, second = epochs(pairs, 2)
    used = (np.flatnonzero(pairs.lengths <= 31) + 10).tolist()
    assert 200 < len(used) < 307
    for epoch in (first, second):
        assert sorted(sum(epoch, [])) == used
    assert len(first) == len(second)
    assert first != second
    assert sorted(map(sorted, first)) != sorted(map(sorted, second)), (
        "the same batches in another order"
    )


def test_order_is_a_function_of_the_seed(pairs):
    assert epochs(pairs, 2) == epochs(pairs, 2)
    assert epochs(pairs, 1) != epochs(pairs, 1, seed=6)


@pytest.mark.parametrize("start_step", [0, 1, 13, 71, 211])
def test_a_run_goes_on_at_any_step(pairs, start_step):
    expected = take(training_batches(pairs, **SETTINGS), start_step + 3)[start_step:]
    for batch, other in zip(
        expected, take(training_batches(pairs, **SETTINGS, start_step=start_step), 3), strict=True
    ):
        np.testing.assert_array_equal(batch[0]["inputs"], other[0]["inputs"])
        np.testing.assert_array_equal(batch[1], other[1])


def test_batches_are_full_but_for_the_last_of_an_epoch(pairs):
    (epoch,) = epochs(pairs, 1)
    smaller = 0
    boundaries = bucket_boundaries(31)
    for batch in epoch:
        longest = pairs.lengths[np.array(batch) - 10].max()
        boundary = boundaries[np.searchsorted(boundaries, longest)]
        assert len(batch) * longest <= 127
        smaller += len(batch) < 127 // boundary
    assert smaller <= 1


def test_lengths_in_a_batch_are_alike(pairs):
    (epoch,) = epochs(pairs, 1)
    spread = [np.ptp(pairs.lengths[np.array(batch) - 10]) for batch in epoch]
    assert np.mean(spread) < 2
    shuffled = [batch[0] for batch in epoch]
    assert shuffled != sorted(shuffled, key=lambda name: pairs.lengths[name - 10])


def test_padded_to_boundaries_there_are_as_many_shapes_as_buckets(pairs):
    plain = take(training_batches(pairs, **SETTINGS), 83)
    padded = take(training_batches(pairs, **SETTINGS, pad_to_boundary=True), 83)
    shapes = set()
    for batch, (inputs, targets, weights) in zip(plain, padded, strict=True):
        rows, length = targets.shape
        assert inputs["inputs"].shape == weights.shape == (rows, length)
        assert length in bucket_boundaries(31) and rows == 127 // length
        shapes.add((rows, length))
        assert names((inputs,)) == names(batch)
        assert weights.sum() == batch[2].sum()
    assert len(shapes) == len(
        np.unique(np.searchsorted(bucket_boundaries(31), pairs.lengths[pairs.lengths <= 31]))
    )


def test_evaluation_takes_all_pairs_once_in_order(pairs):
    dataset = evaluation_batches(pairs, batch_tokens=127)
    batches = list(dataset.as_numpy_iterator())
    assert dataset.cardinality() == len(batches)
    assert sum(map(names, batches), []) == (np.arange(307) + 10).tolist()
    for inputs, targets, weights in batches:
        assert len(targets) * max(targets.shape[1], inputs["inputs"].shape[1]) <= 127
        np.testing.assert_array_equal(weights, np.float32(targets != 0))
    assert sum(weights.sum() for _, _, weights in batches) == pairs.targets.lengths.sum()


def test_evaluation_with_a_pair_longer_than_a_batch(make_pairs):
    pairs = make_pairs([3, 2, 5, 2], [3, 7, 29, 2])
    batches = list(evaluation_batches(pairs, batch_tokens=17).as_numpy_iterator())
    assert list(map(names, batches)) == [[10, 11], [12], [13]]


def test_no_pair_that_is_short_enough_is_an_error(pairs):
    with pytest.raises(
        ValueError,
        match=(
            "Expected pairs of at most 1 tokens a side .* 0 of 307 pairs are used. Skipped: 307 .* "
            "Raise max_length"
        ),
    ):
        training_batches(pairs, batch_tokens=127, max_length=1, seed=0)


def test_batch_smaller_than_a_sentence_is_an_error(pairs):
    with pytest.raises(
        ValueError,
        match=(
            "Expected batch_tokens of at least 31, .* which has 31 tokens. Received: 29. Raise "
            "batch_tokens"
        ),
    ):
        training_batches(pairs, batch_tokens=29, max_length=31, seed=0)


def test_negative_start_step_is_an_error(pairs):
    with pytest.raises(ValueError, match="Expected start_step to be at least 0. Received: -1."):
        training_batches(pairs, **SETTINGS, start_step=-1)


@pytest.mark.parametrize("name", ["multi30k", "wmt_sample"])
def test_real_text_is_batched_with_little_padding(real_text, name):
    folder = real_text(name)
    corpus = read_text(str(folder / "train.en.gz"), str(folder / "train.de.gz"))
    tokenizer = SentencePieceTokenizer.train(corpus.sentences(), vocab_size=8000)
    pairs = encode_pairs(corpus, tokenizer)
    used = report_lengths(pairs, 256).used
    assert used > 0.99 * len(pairs)
    tokens = slots = rows = 0
    for inputs, targets, _ in training_batches(
        pairs, batch_tokens=4096, max_length=256, seed=0
    ).as_numpy_iterator():
        tokens += np.count_nonzero(inputs["inputs"]) + np.count_nonzero(targets)
        slots += inputs["inputs"].size + targets.size
        rows += len(targets)
        if rows == used:
            break
    assert tokens / slots > 0.9
