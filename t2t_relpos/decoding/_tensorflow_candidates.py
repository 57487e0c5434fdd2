"""Selection among beams times vocabulary in two stages, on TensorFlow.

Ids are divided into groups. The best `count` entries are in the `count` groups with the largest
maxima, because each of these maxima is at least as large as any entry of another group. One pass
finds the maxima. Then only `count` groups are sorted instead of the vocabulary.
"""

import tensorflow as tf

SMALLEST_GROUP, USUAL_GROUP, LARGEST_GROUP = 16, 64, 256
# With maxima up to this size, sums of exponentials do not overflow or underflow in float32.
SAFE = 60.0
# Below this size, sorting the vocabulary is faster.
SMALLEST_VOCABULARY = 512


def can_take(scores):
    """Returns whether two stages are faster for scores `[rows, V]`."""
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
    """Returns the divisor of the vocabulary size nearest to the usual group size, or the latter."""
    sizes = [size for size in range(SMALLEST_GROUP, LARGEST_GROUP + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - USUAL_GROUP), default=USUAL_GROUP)


def _filled_up(scores, size, never):
    missing = -scores.shape[-1] % size
    return tf.pad(scores, [[0, 0], [0, missing]], constant_values=never) if missing else scores


def _log_normalizer(scores, maxima):
    """Returns the log of the sum of exponentials of each row.

    The maxima are subtracted only if necessary, because that costs more than the exponentials.
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
    """Returns the maxima `[rows, groups]` without the entry of `never_id`."""
    if never_id is None:
        return maxima
    number, place = divmod(never_id, entries.shape[-1])
    group = entries[:, number]
    others = tf.reduce_max(
        tf.concat([group[:, :place], group[:, place + 1 :]], axis=1), axis=-1, keepdims=True
    )
    return tf.concat([maxima[:, :number], others, maxima[:, number + 1 :]], axis=1)
