"""Compilation by XLA."""

import keras
import pytest


def compile_function(function):
    """Returns a function of arrays, compiled by XLA. Skips the test on PyTorch."""
    if keras.backend.backend() == "torch":
        pytest.skip("XLA does not compile PyTorch")
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)
