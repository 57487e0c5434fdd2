"""Gradients of functions of tensors, on whichever backend Keras runs."""

import keras
import numpy as np


def output_and_gradients(function, inputs, cotangent=1.0):
    """A function's output, and the gradient of `sum(output * cotangent)`.

    Args:
        function: takes the inputs as tensors, in one argument.
        inputs: arrays of floats, in any nest of lists and dicts.
        cotangent: broadcasts to the output.

    Returns:
        (the output, the gradients in the nest of the inputs), NumPy arrays.
        Inputs without effect have gradients of zero.
    """
    backend = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    output, gradients = backend(function, inputs, np.asarray(cotangent))
    return _to_numpy(output), keras.tree.map_structure(_to_numpy, gradients)


def with_values(variables, values, function):
    """`function()` with other values of variables: what makes gradients with respect to them."""
    with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
        return function()


def _to_numpy(tensor):
    # Along a gather TensorFlow's gradients are sparse.
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

    # One compilation; eagerly each operation would have its own.
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
