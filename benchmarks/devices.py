"""The device of the Keras backend: its name, waiting for it, and its peak memory."""

import keras

from benchmarks import memory
from t2t_relpos._backend import device

MEGABYTE = 1024**2


def describe() -> str:
    """Returns the names and versions of the device and the backend."""
    backend = keras.backend.backend()
    module = __import__(backend)
    return f"{_device_name(backend)}, {backend} {module.__version__}, Keras {keras.__version__}"


def wait():
    """Waits until PyTorch has finished. The steps of the other backends wait by themselves."""
    if keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()


def peak_increase(step) -> float:
    """Returns the peak memory of two calls of `step` in MB, minus the memory in use before them.

    On accelerators this is memory of the device, on CPUs of the process. JAX can't reset the peak:
    measure each step in a separate process.
    """
    if device() == "cpu":
        return memory.peak_increase(step)
    before, _ = _memory_in_use_and_peak()
    step()
    step()
    wait()
    return (_memory_in_use_and_peak()[1] - before) / MEGABYTE


def _device_name(backend):
    if device() == "cpu":
        return "CPU"
    if backend == "jax":
        import jax

        return jax.devices()[0].device_kind
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name()
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
    return details.get("device_name", "GPU")


def _memory_in_use_and_peak():
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        stats = jax.local_devices()[0].memory_stats()
        return stats["bytes_in_use"], stats["peak_bytes_in_use"]
    if backend == "torch":
        import torch

        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    import tensorflow as tf

    info = tf.config.experimental.get_memory_info(f"{device().upper()}:0")
    return info["current"], info["peak"]
