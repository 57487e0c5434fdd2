"""Compiled functions on JAX."""

import keras


def compile_function(model, function, *, jit_compile):
    """Returns `function` jitted, or `function` itself.

    Args:
        model: the model. The jitted function reads its current weights at every call.
        function: function of tensors.
        jit_compile: whether to jit.
    """
    if not jit_compile:
        return function
    # Doctest collection imports this module where JAX is not installed.
    import jax

    @jax.jit
    def compiled(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values))):
            return function(*arguments)

    return lambda *arguments: compiled([v.value for v in model.variables], *arguments)
