"""Tables of tensor2tensor's other relative attentions: shapes and initial values."""

import keras

from t2t_relpos.layers.clone_initializer import clone_initializer


def add_table(layer, name, rows, depth):
    """Adds a weight `[rows, depth]`, or `[N, rows, depth]` unless the heads share it, to a layer.

    Args:
        layer: a layer with `num_heads`, `share_heads` and `table_initializer`. The initializer None
            is t2t's normal distribution of standard deviation `depth ** -0.5`.
        name: name of the weight.
        rows: number of vectors.
        depth: length of a vector.
    """
    if layer.table_initializer is None:
        initializer = keras.initializers.RandomNormal(stddev=depth**-0.5)
    else:
        initializer = clone_initializer(layer.table_initializer)
    shape = (rows, depth) if layer.share_heads else (layer.num_heads, rows, depth)
    return layer.add_weight(name=name, shape=shape, initializer=initializer)
