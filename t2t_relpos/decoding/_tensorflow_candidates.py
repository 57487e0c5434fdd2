"""The best of beams times vocabulary in two stages, on TensorFlow.

The ids are in groups. The best `count` of all entries are in the `count` groups with the largest
maxima: of a group that is left out each entry is at most its maximum, and `count` maxima are at
least as large. So one pass finds the maxima, and what has to be sorted are `count` groups in place
of the vocabulary.
"""

import tensorflow as tf

SMALLEST_GROUP, USUAL_GROUP, LARGEST_GROUP = 16, 64, 256
# Rows whose largest score is within this have sums of exponentials far from the ends of float32.
SAFE = 60.0
# Below, sorting everything costs less than the operations that avoid it.
SMALLEST_VOCABULARY = 512


def can_take(scores):
    """Whether the scores `[rows, V]` are of a vocabulary for which two stages pay."""
    return (scores.shape[-1] or 0) >= SMALLEST_VOCABULARY


def best_candidates(scores, offsets, count, never_id, never, normalize):
    """See `candidates.best_candidates`."""
    scores, offsets = tf.convert_to_tensor(scores), tf.convert_to_tensor(offsets)
    size = group_size(scores.shape[-1])
    filled = _filled_up(scores, size, never)
    groups = filled.shape[-1] // size
    batch, beams = tf.unstack(tf.shape(offsets))
    entries = tf.reshape(filled, [-1, groups, size])
    maxima = tf.reduce_max(entries, axis=-1)
    if normalize:
        offsets -= tf.reshape(_log_normalizer(scores, maxima), [batch, beams])
    maxima = _without(never_id, entries, maxima)
    maxima = tf.reshape(maxima, [batch, beams, groups]) + offsets[:, :, None]
    # A single beam can have fewer groups; then all are used.
    chosen = tf.minimum(count, beams * groups)
    group = tf.math.top_k(tf.reshape(maxima, [batch, beams * groups]), chosen, sorted=False).indices
    beam = group // groups
    entries = tf.gather(tf.reshape(entries, [batch, beams * groups, size]), group, batch_dims=1)
    sums = entries + tf.gather(offsets, beam, batch_dims=1)[:, :, None]
    ids = (group % groups * size)[:, :, None] + tf.range(size)
    if never_id is not None:
        sums = tf.where(ids == never_id, never, sums)
    best, index = tf.math.top_k(tf.reshape(sums, [batch, chosen * size]), count)
    beam = tf.gather(beam, index // size, batch_dims=1)
    return best, beam, tf.gather(tf.reshape(ids, [batch, chosen * size]), index, batch_dims=1)


def group_size(vocab_size):
    """The size nearest to the usual one that divides the vocabulary, or the usual one."""
    sizes = [size for size in range(SMALLEST_GROUP, LARGEST_GROUP + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - USUAL_GROUP), default=USUAL_GROUP)


def _filled_up(scores, size, never):
    missing = -scores.shape[-1] % size
    return tf.pad(scores, [[0, 0], [0, missing]], constant_values=never) if missing else scores


def _log_normalizer(scores, maxima):
    """Log of the sum of exponentials of each row.

    Without a shift if none is needed: to subtract a number from each row costs
    more than the exponentials.
    """
    largest = tf.reduce_max(maxima, axis=-1, keepdims=True)

    def as_they_are():
        return tf.math.log(tf.reduce_sum(tf.exp(scores), axis=-1, keepdims=True))

    def shifted():
        return largest + tf.math.log(
            tf.reduce_sum(tf.exp(scores - largest), axis=-1, keepdims=True)
        )

    return tf.cond(tf.reduce_max(tf.abs(largest)) < SAFE, as_they_are, shifted)


def _without(never_id, entries, maxima):
    """The maxima `[rows, groups]` of groups of entries as if `never_id` were not available."""
    if never_id is None:
        return maxima
    number, place = divmod(never_id, entries.shape[-1])
    group = entries[:, number]
    others = tf.reduce_max(
        tf.concat([group[:, :place], group[:, place + 1 :]], axis=1), axis=-1, keepdims=True
    )
    return tf.concat([maxima[:, :number], others, maxima[:, number + 1 :]], axis=1)
