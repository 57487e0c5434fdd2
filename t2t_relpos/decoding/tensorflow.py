"""Parts of searches for TensorFlow: candidates of beam search in two stages, and the loop.

Candidates: the vocabulary is split into groups of ids. The best `count` entries are in the `count`
groups with the largest maxima, because no entry of another group exceeds any of these maxima. The
first stage computes the maxima. The second stage sorts `count` groups instead of the vocabulary.

Loop, without XLA: only a few sentences require the last steps. An inner loop runs until a
fraction of the sentences is done. An outer loop stores their results and continues with the others.
"""

import tensorflow as tf

from t2t_relpos.decoding.constraints import LOWEST_LOGIT, MASKED

SMALLEST_GROUP, USUAL_GROUP, LARGEST_GROUP = 16, 64, 256
# With maxima up to this size, sums of exponentials do not overflow or underflow in float32.
LARGEST_UNSHIFTED = 60.0
# For smaller vocabularies, sorting is faster.
SMALLEST_VOCABULARY = 512


def two_stages_are_faster(scores, count):
    """Returns whether two stages are faster than sorting for scores `[rows, V]`.

    With more candidates than ids, the first step may have too few: sorting adds invalid ones.
    """
    size = scores.shape[-1] or 0
    return size >= max(SMALLEST_VOCABULARY, count if isinstance(count, int) else 0)


def best_candidates(scores, offsets, is_active, count, never_id, allowed, *, normalize):
    """Returns the sums, beams and ids of `Candidates`, and whether they exist or None for all.

    The arguments are those of `beam_search.best_candidates`.
    """
    vocab_size = scores.shape[-1]
    size = group_size(vocab_size)
    groups = -(-vocab_size // size)
    batch, beams = tf.unstack(tf.shape(offsets))
    # Groups of inactive beams are selected last.
    offsets = tf.where(is_active, offsets, MASKED)
    if allowed is not None:
        scores = tf.where(allowed, scores, MASKED)
    entries = tf.reshape(_pad_vocabulary(scores, size), [-1, groups, size])
    maxima = tf.reduce_max(entries, axis=-1)
    if normalize:
        offsets -= tf.reshape(_log_normalizer(scores, maxima), [batch, beams])
    maxima = _maxima_without(never_id, entries, maxima)
    # Logits may be -inf, which must stay above MASKED.
    finite = (lambda x: tf.maximum(x, LOWEST_LOGIT)) if normalize else tf.convert_to_tensor
    maxima = tf.reshape(finite(maxima), [batch, beams, groups]) + tf.expand_dims(offsets, 2)
    # If there are fewer groups, all of them are selected.
    selected = tf.minimum(count, beams * groups)
    group = tf.math.top_k(
        tf.reshape(maxima, [batch, beams * groups]), selected, sorted=False
    ).indices
    beam = group // groups
    entries = tf.gather(tf.reshape(entries, [batch, beams * groups, size]), group, batch_dims=1)
    sums = finite(entries) + tf.expand_dims(tf.gather(offsets, beam, batch_dims=1), 2)
    ids = tf.expand_dims(group % groups * size, 2) + tf.range(size)
    if never_id is not None:
        sums = tf.where(ids == never_id, MASKED, sums)
    if vocab_size % size:
        sums = tf.where(ids < vocab_size, sums, MASKED)
    sums = tf.reshape(sums, [batch, selected * size])
    exists = None
    if not isinstance(count, int):
        # In the first step, one beam may have fewer than `count` entries.
        sums = tf.pad(sums, [[0, 0], [0, count]], constant_values=MASKED)
    best, index = tf.math.top_k(sums, count)
    if not isinstance(count, int):
        exists = index < selected * size
        index = tf.minimum(index, selected * size - 1)
    beam = tf.gather(beam, index // size, batch_dims=1)
    ids = tf.gather(tf.reshape(ids, [batch, selected * size]), index, batch_dims=1)
    if vocab_size % size:
        exists = ids < vocab_size if exists is None else exists & (ids < vocab_size)
        ids = tf.minimum(ids, vocab_size - 1)
    return best, beam, ids, exists


def group_size(vocab_size):
    """Returns the divisor of the vocabulary size that is nearest to `USUAL_GROUP`.

    If no group size divides the vocabulary size, `USUAL_GROUP` is returned.
    """
    sizes = [size for size in range(SMALLEST_GROUP, LARGEST_GROUP + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - USUAL_GROUP), default=USUAL_GROUP)


def _pad_vocabulary(scores, size):
    padding = -scores.shape[-1] % size
    return tf.pad(scores, [[0, 0], [0, padding]], constant_values=MASKED) if padding else scores


def _log_normalizer(scores, maxima):
    """Returns the log of the sum of exponentials of each row.

    The maxima are subtracted only if necessary, because the subtraction takes longer than the
    exponentials.
    """
    largest = tf.reduce_max(maxima, axis=-1, keepdims=True)

    def unshifted():
        return tf.math.log(tf.reduce_sum(tf.exp(scores), axis=-1, keepdims=True))

    def shifted():
        # All logits of a row may be -inf.
        finite = tf.maximum(largest, LOWEST_LOGIT)
        sums = tf.reduce_sum(tf.exp(scores - finite), axis=-1, keepdims=True)
        return tf.maximum(finite + tf.math.log(sums), LOWEST_LOGIT)

    return tf.cond(tf.reduce_max(tf.abs(largest)) < LARGEST_UNSHIFTED, unshifted, shifted)


def _maxima_without(never_id, entries, maxima):
    """Returns the maxima of groups, `[rows, groups]`, with the entry of `never_id` ignored."""
    if never_id is None:
        return maxima
    index, position = divmod(never_id, entries.shape[-1])
    group = entries[:, index]
    others = group[:, 1:]
    if position:
        others = tf.concat([group[:, :position], group[:, position + 1 :]], axis=1)
    maximum = tf.reduce_max(others, axis=-1, keepdims=True)
    before = [maxima[:, :index]] if index else []
    return tf.concat([*before, maximum, maxima[:, index + 1 :]], axis=1)


# The inner loop ends when one sentence in REMOVAL_DIVISOR is done. Then, gathering the state of the
# other sentences takes about as long as further steps of the done sentences would take.
REMOVAL_DIVISOR = 4


def until_done(advance, hypotheses, limit, fixed, rest, result_entries):
    """Advances all sentences until each is done, as `_until_done` of `search.py`.

    Returns:
        The entries `result_entries`, for each sentence from the step in which it was removed.
    """

    def inner(i, original, hypotheses, limit, fixed, rest):
        num_to_remove = tf.maximum(1, tf.size(original) // REMOVAL_DIVISOR)

        def proceed(i, hypotheses, rest):
            return tf.math.count_nonzero(hypotheses["done"], dtype=tf.int32) < num_to_remove

        def step(i, hypotheses, rest):
            return i + 1, *advance(i, hypotheses, limit, fixed, rest)

        shapes = _shapes(i), _shapes(hypotheses, 2), _shapes(rest)
        return tf.while_loop(proceed, step, (i, hypotheses, rest), shape_invariants=shapes)

    def proceed(i, original, hypotheses, limit, fixed, rest, results):
        return tf.size(original) > 0

    def step(i, original, hypotheses, limit, fixed, rest, results):
        i, hypotheses, rest = inner(i, original, hypotheses, limit, fixed, rest)
        done = tf.where(hypotheses["done"])[:, 0]
        indices = tf.gather(original, done)[:, None]
        results = {
            name: tf.tensor_scatter_nd_update(
                results[name], indices, tf.gather(hypotheses[name], done)
            )
            for name in results
        }
        remaining = tf.cast(tf.where(~hypotheses["done"])[:, 0], tf.int32)
        # Before the first step, a sentence may have one row only.
        num_rows = tf.shape(hypotheses["last"])[1]
        rows = tf.reshape(remaining[:, None] * num_rows + tf.range(num_rows), [-1])
        original, hypotheses, limit = _gather((original, hypotheses, limit), remaining)
        sentences = {
            name: _gather(part, remaining) for name, part in rest.items() if name == "sentences"
        }
        rest = {n: x for n, x in rest.items() if n != "sentences"}
        rest = _gather(rest, rows) | sentences
        return i, original, hypotheses, limit, _gather(fixed, rows), rest, results

    # The original indices of the sentences that are left.
    original = tf.range(tf.size(limit))
    results = {name: hypotheses[name] for name in result_entries}
    start = tf.constant(0), original, hypotheses, limit, fixed, rest, results
    shapes = [_shapes(part, 2 if part is hypotheses else 1) for part in start]
    return tf.while_loop(proceed, step, start, shape_invariants=tuple(shapes))[-1]


def _gather(nested, index):
    return tf.nest.map_structure(lambda x: tf.gather(x, index), nested)


def _shapes(nested, num_unknown=1):
    """Returns shape invariants without the first sizes.

    The batch shrinks. The first step of a beam search may change one row per sentence to k, the
    second size of hypotheses.
    """

    def shape_of(x):
        unknown = min(len(x.shape), num_unknown)
        return tf.TensorShape([None] * unknown + list(x.shape[unknown:]))

    return tf.nest.map_structure(shape_of, nested)
