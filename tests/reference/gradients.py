"""Gradients of functions of tensors, on every backend of Keras."""

import keras
import numpy as np


def output_and_gradients(function, inputs, cotangent=1.0):
    """Returns a function's output and the gradient of `sum(output * cotangent)`.

    Args:
        function: `function(tensors)`, where `tensors` has the structure of `inputs`.
        inputs: floating-point arrays in a nested structure of lists and dicts.
        cotangent: array that broadcasts to the output. Default: 1.

    Returns:
        A pair of the output and the gradients, which have the structure of `inputs`. All are
        NumPy arrays. Inputs without effect have zero gradients.
    """
    backend = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    output, gradients = backend(function, inputs, np.asarray(cotangent))
    return _to_numpy(output), keras.tree.map_structure(_to_numpy, gradients)


def with_values(variables, values, function):
    """Returns `function()`, computed with `values` in place of the values of `variables`."""
    with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
        return function()


def _to_numpy(tensor):
    # TensorFlow's gradients of a gather are sparse.
    return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(tensor))


def _like(cotangent, output):
    return keras.ops.broadcast_to(keras.ops.cast(cotangent, output.dtype), output.shape)


def _tensorflow(function, inputs, cotangent):
    import tensorflow as tf

    tensors = keras.tree.map_structure(tf.convert_to_tensor, inputs)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output = function(tensors)
    zero = tf.UnconnectedGradients.ZERO
    return output, tape.gradient(output, tensors, _like(cotangent, output), zero)


def _jax(function, inputs, cotangent):
    import jax

    # Compile the function once. Eager execution would compile each operation separately.
    @jax.jit
    def both(tensors):
        output, pull_back = jax.vjp(function, tensors)
        return output, pull_back(_like(cotangent, output))[0]

    return both(keras.tree.map_structure(jax.numpy.asarray, inputs))


def _torch(function, inputs, cotangent):
    import torch

    tensors = keras.tree.map_structure(lambda x: torch.tensor(x, requires_grad=True), inputs)
    leaves = keras.tree.flatten(tensors)
    output = function(tensors)
    gradients = torch.autograd.grad(
        output, leaves, _like(cotangent, output), allow_unused=True, materialize_grads=True
    )
    return output, keras.tree.pack_sequence_as(tensors, gradients)
