"""The loop of a search that lets go of sentences when they are done, for graphs of TensorFlow.

A batch's last steps are for few sentences. So an inner loop runs until a share of them is done, and an outer one keeps their
results and goes on with the others alone.
"""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from t2t_relpos.decoding.rows import gather_rows

# Gathering what is left costs about as much as the steps of a quarter of the sentences.
SHARE_DONE = 4


def is_compiled():
    """Whether XLA compiles what is being traced: it takes no sizes that change in a loop."""
    # TensorFlow says so nowhere in public.
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def until_done(advance, beams, limit, fixed, rest, beam_size):
    """See `until_done.until_done`. Each sentence's beams are those with which it left."""

    def inner(i, order, beams, limit, fixed, rest):
        enough = tf.maximum(1, tf.size(order) // SHARE_DONE)

        def proceed(i, beams, rest):
            return tf.math.count_nonzero(beams["done"], dtype=tf.int32) < enough

        def step(i, beams, rest):
            return i + 1, *advance(i, beams, limit, fixed, rest)

        return tf.while_loop(proceed, step, (i, beams, rest))

    def proceed(i, order, beams, limit, fixed, rest, results):
        return tf.size(order) > 0

    def step(i, order, beams, limit, fixed, rest, results):
        i, beams, rest = inner(i, order, beams, limit, fixed, rest)
        done = tf.where(beams["done"])[:, 0]
        places = tf.gather(order, done)[:, None]
        results = {
            name: tf.tensor_scatter_nd_update(results[name], places, tf.gather(beams[name], done)) for name in results
        }
        living = tf.cast(tf.where(~beams["done"])[:, 0], tf.int32)
        rows = tf.reshape(living[:, None] * beam_size + tf.range(beam_size), [-1])
        order, beams, limit = _gather((order, beams, limit), living)
        sentences = {name: _gather(part, living) for name, part in rest.items() if name == "sentences"}
        rest = gather_rows(rest, rows) | sentences
        return i, order, beams, limit, _gather(fixed, rows), rest, results

    order = tf.range(tf.size(limit))
    start = order, beams, limit, fixed, rest
    # Each time round they have fewer rows.
    shapes = tf.nest.map_structure(lambda x: tf.TensorShape([None, *x.shape[1:]]), start)
    results = tf.nest.map_structure(lambda x: x.shape, beams)
    shapes = tf.TensorShape([]), *shapes, results
    return tf.while_loop(proceed, step, (tf.constant(0), *start, beams), shape_invariants=shapes)[-1]


def _gather(nested, index):
    return tf.nest.map_structure(lambda x: tf.gather(x, index), nested)
