"""Search loop that removes finished sentences from the batch, for TensorFlow graphs without XLA.

Few sentences need the last steps. An inner loop runs until a fraction of the sentences is done. An
outer loop stores their results and continues with the others.
"""

import tensorflow as tf

from t2t_relpos.decoding.state_rows import gather_rows

# Removing sentences costs about as much as the steps of a quarter of them.
SHARE_DONE = 4
# Entries of the beams that `Beams.result` reads.
RESULTS = ("finished_ids", "finished_scores", "length")


def until_done(advance, beams, limit, fixed, rest, beam_size):
    """See `search_loop.until_done`. Returns the entries `RESULTS` of each sentence when it left."""

    def inner(i, order, beams, limit, fixed, rest):
        enough = tf.maximum(1, tf.size(order) // SHARE_DONE)

        def proceed(i, beams, rest):
            return tf.math.count_nonzero(beams["done"], dtype=tf.int32) < enough

        def step(i, beams, rest):
            return i + 1, *advance(i, beams, limit, fixed, rest)

        start = i, beams, rest
        return tf.while_loop(proceed, step, start, shape_invariants=tuple(map(_shapes, start)))

    def proceed(i, order, beams, limit, fixed, rest, results):
        return tf.size(order) > 0

    def step(i, order, beams, limit, fixed, rest, results):
        i, beams, rest = inner(i, order, beams, limit, fixed, rest)
        done = tf.where(beams["done"])[:, 0]
        places = tf.gather(order, done)[:, None]
        results = {
            name: tf.tensor_scatter_nd_update(results[name], places, tf.gather(beams[name], done))
            for name in results
        }
        living = tf.cast(tf.where(~beams["done"])[:, 0], tf.int32)
        rows = tf.reshape(living[:, None] * beam_size + tf.range(beam_size), [-1])
        order, beams, limit = _gather((order, beams, limit), living)
        sentences = {
            name: _gather(part, living) for name, part in rest.items() if name == "sentences"
        }
        rest = gather_rows(rest, rows) | sentences
        return i, order, beams, limit, _gather(fixed, rows), rest, results

    order = tf.range(tf.size(limit))
    results = {name: beams[name] for name in RESULTS}
    start = tf.constant(0), order, beams, limit, fixed, rest, results
    return tf.while_loop(proceed, step, start, shape_invariants=tuple(map(_shapes, start)))[-1]


def _gather(nested, index):
    return tf.nest.map_structure(lambda x: tf.gather(x, index), nested)


def _shapes(nested):
    """Returns loop-invariant shapes: the batch shrinks, and the first step makes one beam k."""
    is_beams = isinstance(nested, dict) and "log_probs" in nested

    def shape_of(x):
        rank = len(x.shape)
        return tf.TensorShape(
            [None] * min(rank, 2 if is_beams else 1) + list(x.shape[2 if is_beams else 1 :])
        )

    return tf.nest.map_structure(shape_of, nested)
