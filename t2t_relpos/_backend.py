"""Facts about the Keras backend on which implementations depend."""

import keras


def is_compiled_by_xla():
    """Returns whether TensorFlow is tracing a graph for XLA."""
    if keras.backend.backend() != "tensorflow":
        return False
    from t2t_relpos.attention.tensorflow import compat

    return compat.is_compiled_by_xla()


def is_tensorflow_without_xla():
    """Returns whether Keras runs on TensorFlow and the current code is not compiled by XLA.

    XLA requires loops to keep the shapes of their variables.
    """
    return keras.backend.backend() == "tensorflow" and not is_compiled_by_xla()
