"""Compiled functions on JAX."""

import keras


def compile_function(model, function):
    """Returns `function` jitted. It reads the current weights of the model at every call."""
    # Doctest collection imports this module where JAX is not installed.
    import jax

    @jax.jit
    def compiled(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values))):
            return function(*arguments)

    return lambda *arguments: compiled([v.value for v in model.variables], *arguments)
