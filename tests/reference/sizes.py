"""Sizes of all tensors that a function and its gradient create, on every backend."""

import math

import keras
import numpy as np


def largest_tensor(function, inputs, others):
    """Returns the number of elements of the largest tensor in a computation and its gradient.

    The computation is `sum(function(inputs, others) ** 2)`.

    Args:
        function: `function(inputs, others)`, called with lists of tensors.
        inputs: list of floating-point arrays. Gradients are computed with respect to these.
        others: list of arrays.
    """
    backend = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return max(backend(function, inputs, others))


def _tensorflow(function, inputs, others):
    import tensorflow as tf

    @tf.function
    def gradients(inputs, others):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(function(inputs, others) ** 2)
        return tape.gradient(loss, inputs)

    graph = gradients.get_concrete_function(*_map(tf.constant, inputs, others)).graph
    for operation in graph.get_operations():
        assert not operation.type.endswith(("PartitionedCall", "While", "If")), operation.type
        sizes = [output.shape.num_elements() for output in operation.outputs]
        # Gradients of broadcasting have unknown shapes: reduction axes, and sums over them.
        assert None not in sizes or operation.type in ("BroadcastGradientArgs", "Sum"), operation
        yield from (size for size in sizes if size is not None)


def _jax(function, inputs, others):
    import jax

    def loss(inputs, others):
        return (function(inputs, others) ** 2).sum()

    return _sizes_in(jax.make_jaxpr(jax.grad(loss))(*_map(np.asarray, inputs, others)).jaxpr)


def _sizes_in(jaxpr):
    for equation in jaxpr.eqns:
        yield from (math.prod(variable.aval.shape) for variable in equation.outvars)
        for parameter in keras.tree.flatten(list(equation.params.values())):
            inner = getattr(parameter, "jaxpr", parameter)  # the jaxpr of a ClosedJaxpr
            if hasattr(inner, "eqns"):
                yield from _sizes_in(inner)


def _torch(function, inputs, others):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            output = operation(*args, **(kwargs or {}))
            tensors = (t for t in keras.tree.flatten(output) if isinstance(t, torch.Tensor))
            # A broadcast tensor takes no memory.
            sizes.extend(t.untyped_storage().nbytes() // t.element_size() for t in tensors)
            return output

    inputs, others = _map(torch.tensor, inputs, others)
    inputs = [x.requires_grad_() for x in inputs]
    with Record():
        torch.autograd.grad((function(inputs, others) ** 2).sum(), inputs)
    return sizes


def _map(convert, *nests):
    return keras.tree.map_structure(convert, nests)
