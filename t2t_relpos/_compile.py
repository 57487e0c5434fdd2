"""Compiled functions of a model, on each backend."""

import keras


def compile_function(model, function, *, jit_compile):
    """Returns a function of tensors, compiled as far as the backend can.

    On TensorFlow, a graph: with XLA one for each shape of its arguments, else one for batches of
    all sizes. On JAX, a jitted function that reads the model's current weights at every call, or
    with `jit_compile=False` the function itself. On PyTorch, the function without recording of
    gradients, which would keep all steps in memory.

    Args:
        model: the model whose variables the function reads.
        function: a function of tensors.
        jit_compile: whether XLA compiles it. Not used on PyTorch.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # XLA needs the shapes that a relaxed signature would hide.
        return tf.function(
            function, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False
        )
    if backend == "torch":
        import torch

        return torch.no_grad()(function)
    return _jitted(model, function) if jit_compile else function


def _jitted(model, function):
    import jax

    @jax.jit
    def compiled(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values))):
            return function(*arguments)

    return lambda *arguments: compiled([v.value for v in model.variables], *arguments)
