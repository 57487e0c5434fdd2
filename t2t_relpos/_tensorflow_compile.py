"""Compiled functions on TensorFlow."""

import tensorflow as tf


def compile_function(model, function, *, jit_compile):
    """Returns `function` as a graph.

    Args:
        model: not used, because graphs refer to variables.
        function: function of tensors.
        jit_compile: True: XLA compiles the graph for each shape of its arguments. False: one graph
            serves batches of all sizes.
    """
    # XLA needs the shapes that a relaxed signature would hide.
    return tf.function(
        function, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False
    )
