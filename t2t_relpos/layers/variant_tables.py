"""Tables of tensor2tensor's other relative attentions: shapes and first values."""

import keras


def add_table(layer, name, rows, depth):
    """A weight `[rows, depth]`, or `[N, rows, depth]` unless the layer's heads share it.

    Args:
        layer: has `num_heads`, `share_heads` and `table_initializer`; None for
            the last is t2t's normal distribution of standard deviation
            `depth ** -0.5`.
        name: of the weight.
        rows: number of vectors.
        depth: their length.
    """
    initializer = layer.table_initializer
    if initializer is None:
        initializer = keras.initializers.RandomNormal(stddev=depth**-0.5)
    else:
        # A seeded initializer shared by tables would start them all with the same values.
        initializer = initializer.__class__.from_config(initializer.get_config())
    shape = (rows, depth) if layer.share_heads else (layer.num_heads, rows, depth)
    return layer.add_weight(name=name, shape=shape, initializer=initializer)
