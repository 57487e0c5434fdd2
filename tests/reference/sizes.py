"""Sizes of all tensors that a function and its gradient make, on every backend."""

import math

import keras
import numpy as np


def largest_tensor(function, inputs, others):
    """Elements of the largest tensor that is made for `sum(function(...) ** 2)` and its gradient.

    Args:
        function: takes the inputs, then the others, as tensors, in two arguments.
        inputs: arrays of floats, in a list: what the gradient is with respect to.
        others: arrays, in a list.
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
        # Gradients of what was broadcast: axes, and sums, smaller than what they sum.
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
            inner = getattr(parameter, "jaxpr", parameter)  # of a closed one
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
