"""Search loop for TensorFlow graphs without XLA, which removes finished sentences from the batch.

Only a few sentences require the last steps. An inner loop runs until a fraction of the sentences
is done. An outer loop stores their results and continues with the other sentences.
"""

import tensorflow as tf

from t2t_relpos.decoding.beams import RESULT_ENTRIES
from t2t_relpos.decoding.state_rows import gather_rows

# The inner loop ends when one sentence in REMOVAL_DIVISOR is done. Then, gathering the state of the
# other sentences takes about as long as further steps of the done sentences would take.
REMOVAL_DIVISOR = 4


def until_done(advance, beams, limit, fixed, rest):
    """Implements `search_loop.until_done`.

    Returns:
        The entries `RESULT_ENTRIES`, for each sentence from the step in which it was removed.
    """

    def inner(i, order, beams, limit, fixed, rest):
        num_to_remove = tf.maximum(1, tf.size(order) // REMOVAL_DIVISOR)

        def proceed(i, beams, rest):
            return tf.math.count_nonzero(beams["done"], dtype=tf.int32) < num_to_remove

        def step(i, beams, rest):
            return i + 1, *advance(i, beams, limit, fixed, rest)

        start = i, beams, rest
        return tf.while_loop(proceed, step, start, shape_invariants=tuple(map(_shapes, start)))

    def proceed(i, order, beams, limit, fixed, rest, results):
        return tf.size(order) > 0

    def step(i, order, beams, limit, fixed, rest, results):
        i, beams, rest = inner(i, order, beams, limit, fixed, rest)
        done = tf.where(beams["done"])[:, 0]
        indices = tf.gather(order, done)[:, None]
        results = {
            name: tf.tensor_scatter_nd_update(results[name], indices, tf.gather(beams[name], done))
            for name in results
        }
        remaining = tf.cast(tf.where(~beams["done"])[:, 0], tf.int32)
        # Before the first step, a sentence may have one row only.
        num_rows = tf.shape(beams["log_probs"])[1]
        rows = tf.reshape(remaining[:, None] * num_rows + tf.range(num_rows), [-1])
        order, beams, limit = _gather((order, beams, limit), remaining)
        sentences = {
            name: _gather(part, remaining) for name, part in rest.items() if name == "sentences"
        }
        rest = gather_rows(rest, rows) | sentences
        return i, order, beams, limit, _gather(fixed, rows), rest, results

    order = tf.range(tf.size(limit))
    results = {name: beams[name] for name in RESULT_ENTRIES}
    start = tf.constant(0), order, beams, limit, fixed, rest, results
    return tf.while_loop(proceed, step, start, shape_invariants=tuple(map(_shapes, start)))[-1]


def _gather(nested, index):
    return tf.nest.map_structure(lambda x: tf.gather(x, index), nested)


def _shapes(nested):
    """Returns shape invariants: the batch shrinks, and the first step may change one beam to k."""
    is_beams = isinstance(nested, dict) and "log_probs" in nested

    def shape_of(x):
        rank = len(x.shape)
        return tf.TensorShape(
            [None] * min(rank, 2 if is_beams else 1) + list(x.shape[2 if is_beams else 1 :])
        )

    return tf.nest.map_structure(shape_of, nested)
