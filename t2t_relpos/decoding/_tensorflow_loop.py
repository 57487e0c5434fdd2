"""The loop of a search that lets go of sentences when they are done, for graphs of TensorFlow.

A batch's last steps are for few sentences. So an inner loop runs until a share of them is done, and an outer one keeps their
results and goes on with the others alone.
"""

import tensorflow as tf

# Gathering all that is left costs about as much as the steps of a quarter of the sentences.
SHARE_DONE = 4


def run(advance, beams, limit, context, rest, beam_size):
    """Advances all sentences until each is done.

    Args:
        advance: `advance(i, beams, limit, context, rest) -> (beams, rest)`, one step.
        beams: dict of tensors `[B, ...]` with `"done"`, bool `[B]`; results are read from them.
        limit: int32 `[B]`, most steps of a sentence.
        context: nested dict of tensors `[B * k, ...]`, or None; the same in every step.
        rest: (nested tensors `[B * k, ...]`, nested tensors `[B, ...]`): what else a step takes and gives.
        beam_size: k.

    Returns:
        the beams, each sentence's as they were when it was done.
    """

    def inner(i, order, beams, limit, context, rest):
        enough = tf.maximum(1, tf.size(order) // SHARE_DONE)

        def proceed(i, beams, rest):
            return tf.math.count_nonzero(beams["done"], dtype=tf.int32) < enough

        def step(i, beams, rest):
            return i + 1, *advance(i, beams, limit, context, rest)

        return tf.while_loop(proceed, step, (i, beams, rest))

    def proceed(i, order, beams, limit, context, rest, results):
        return tf.size(order) > 0

    def step(i, order, beams, limit, context, rest, results):
        i, beams, rest = inner(i, order, beams, limit, context, rest)
        done = tf.where(beams["done"])[:, 0]
        places = tf.gather(order, done)[:, None]
        results = {
            name: tf.tensor_scatter_nd_update(results[name], places, tf.gather(beams[name], done)) for name in results
        }
        living = tf.cast(tf.where(~beams["done"])[:, 0], tf.int32)
        rows = tf.reshape(living[:, None] * beam_size + tf.range(beam_size), [-1])
        order, beams, limit = _gather((order, beams, limit), living)
        context, rest_of_rows = _gather((context, rest[0]), rows)
        return i, order, beams, limit, context, (rest_of_rows, _gather(rest[1], living)), results

    order = tf.range(tf.size(limit))
    start = (tf.constant(0), order, beams, limit, context, rest, beams)
    return tf.while_loop(proceed, step, start)[-1]


def _gather(nested, index):
    return tf.nest.map_structure(lambda x: tf.gather(x, index), nested)
