"""Selection of the best continuations in two stages, on TensorFlow.

The vocabulary is split into groups of ids. The best `count` entries are in the `count` groups with
the largest maxima, because no entry of another group exceeds any of these maxima. The first stage
computes the maxima. The second stage sorts `count` groups instead of the vocabulary.
"""

import tensorflow as tf

SMALLEST_GROUP, USUAL_GROUP, LARGEST_GROUP = 16, 64, 256
# With maxima up to this size, sums of exponentials do not overflow or underflow in float32.
LARGEST_UNSHIFTED = 60.0
# For smaller vocabularies, sorting is faster.
SMALLEST_VOCABULARY = 512


def is_faster(scores):
    """Returns whether two stages are faster than sorting for scores `[rows, V]`."""
    return (scores.shape[-1] or 0) >= SMALLEST_VOCABULARY


def best_candidates(scores, offsets, count, never_id, never, *, normalize):
    """Implements `candidates.best_candidates`."""
    scores, offsets = tf.convert_to_tensor(scores), tf.convert_to_tensor(offsets)
    size = group_size(scores.shape[-1])
    padded = _pad_vocabulary(scores, size, never)
    groups = padded.shape[-1] // size
    batch, beams = tf.unstack(tf.shape(offsets))
    entries = tf.reshape(padded, [-1, groups, size])
    maxima = tf.reduce_max(entries, axis=-1)
    if normalize:
        offsets -= tf.reshape(_log_normalizer(scores, maxima), [batch, beams])
    maxima = _maxima_without(never_id, entries, maxima)
    maxima = tf.reshape(maxima, [batch, beams, groups]) + offsets[:, :, None]
    # If there are fewer groups, all of them are selected.
    selected = tf.minimum(count, beams * groups)
    group = tf.math.top_k(
        tf.reshape(maxima, [batch, beams * groups]), selected, sorted=False
    ).indices
    beam = group // groups
    entries = tf.gather(tf.reshape(entries, [batch, beams * groups, size]), group, batch_dims=1)
    sums = entries + tf.gather(offsets, beam, batch_dims=1)[:, :, None]
    ids = (group % groups * size)[:, :, None] + tf.range(size)
    if never_id is not None:
        sums = tf.where(ids == never_id, never, sums)
    best, index = tf.math.top_k(tf.reshape(sums, [batch, selected * size]), count)
    beam = tf.gather(beam, index // size, batch_dims=1)
    return best, beam, tf.gather(tf.reshape(ids, [batch, selected * size]), index, batch_dims=1)


def group_size(vocab_size):
    """Returns the divisor of the vocabulary size that is nearest to `USUAL_GROUP`.

    If no group size divides the vocabulary size, `USUAL_GROUP` is returned.
    """
    sizes = [size for size in range(SMALLEST_GROUP, LARGEST_GROUP + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - USUAL_GROUP), default=USUAL_GROUP)


def _pad_vocabulary(scores, size, never):
    padding = -scores.shape[-1] % size
    return tf.pad(scores, [[0, 0], [0, padding]], constant_values=never) if padding else scores


def _log_normalizer(scores, maxima):
    """Returns the log of the sum of exponentials of each row.

    The maxima are subtracted only if necessary, because the subtraction takes longer than the
    exponentials.
    """
    largest = tf.reduce_max(maxima, axis=-1, keepdims=True)

    def unshifted():
        return tf.math.log(tf.reduce_sum(tf.exp(scores), axis=-1, keepdims=True))

    def shifted():
        return largest + tf.math.log(
            tf.reduce_sum(tf.exp(scores - largest), axis=-1, keepdims=True)
        )

    return tf.cond(tf.reduce_max(tf.abs(largest)) < LARGEST_UNSHIFTED, unshifted, shifted)


def _maxima_without(never_id, entries, maxima):
    """Returns the maxima of groups, `[rows, groups]`, with the entry of `never_id` ignored."""
    if never_id is None:
        return maxima
    index, position = divmod(never_id, entries.shape[-1])
    group = entries[:, index]
    others = tf.reduce_max(
        tf.concat([group[:, :position], group[:, position + 1 :]], axis=1), axis=-1, keepdims=True
    )
    return tf.concat([maxima[:, :index], others, maxima[:, index + 1 :]], axis=1)
