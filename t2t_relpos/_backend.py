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


def device():
    """Returns the kind of device that the backend computes on: "cpu", "gpu" or "tpu"."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        kinds = (kind for kind in ("TPU", "GPU") if tf.config.get_visible_devices(kind))
        return next(kinds, "CPU").lower()
    if backend == "jax":
        import jax

        kind = jax.default_backend()
        return kind if kind in ("cpu", "tpu") else "gpu"
    import torch

    # Keras puts tensors on an accelerator where there is one.
    return "gpu" if torch.cuda.is_available() or torch.backends.mps.is_available() else "cpu"
