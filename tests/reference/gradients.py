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


def gradients_of_squared_gradients(loss, inputs):
    """Returns the gradients of the sum of squares of a loss's gradients.

    Args:
        loss: `loss(tensors)`, a scalar, where `tensors` has the structure of `inputs`.
        inputs: floating-point arrays in a dict.

    Returns:
        NumPy arrays in the structure of `inputs`.
    """
    names = list(inputs)
    backend = {
        "tensorflow": _tensorflow_second_derivatives,
        "jax": _jax_second_derivatives,
        "torch": _torch_second_derivatives,
    }[keras.backend.backend()]
    found = backend(lambda *xs: loss(dict(zip(names, xs, strict=True))), list(inputs.values()))
    return dict(zip(names, map(_to_numpy, found), strict=True))


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


def _tensorflow_second_derivatives(loss, arrays):
    import tensorflow as tf

    tensors = list(map(tf.constant, arrays))
    with tf.GradientTape() as outer:
        outer.watch(tensors)
        with tf.GradientTape() as inner:
            inner.watch(tensors)
            value = loss(*tensors)
        total = tf.add_n([tf.reduce_sum(g**2) for g in inner.gradient(value, tensors)])
    return outer.gradient(total, tensors)


def _jax_second_derivatives(loss, arrays):
    import jax

    argnums = tuple(range(len(arrays)))
    first = jax.grad(loss, argnums)
    second = jax.grad(lambda *xs: sum((g**2).sum() for g in first(*xs)), argnums)
    return jax.jit(second)(*map(jax.numpy.asarray, arrays))


def _torch_second_derivatives(loss, arrays):
    import torch

    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    first = torch.autograd.grad(loss(*tensors), tensors, create_graph=True)
    return torch.autograd.grad(sum((g**2).sum() for g in first), tensors)
