"""What parts that have ways of their own on a backend ask of it."""

import keras


def is_tensorflow_without_xla():
    """Whether Keras runs on TensorFlow, and XLA does not compile what is being traced: it takes no sizes that change in a loop."""
    if keras.backend.backend() != "tensorflow":
        return False
    from t2t_relpos import _tensorflow_xla

    return not _tensorflow_xla.is_compiled()
