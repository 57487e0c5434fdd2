"""Properties of JAX on which implementations depend."""


def device():
    """Returns the kind of JAX's default device: "cpu", "gpu" or "tpu"."""
    # Doctest collection imports this module where JAX is not installed.
    import jax

    # `keras.device("cpu:0")` changes the default device, which may also be a name.
    device = jax.config.jax_default_device
    kind = getattr(device, "platform", device) or jax.default_backend()
    return kind if kind in ("cpu", "tpu") else "gpu"


def clip_symbol(x, low, high):
    """Returns a symbolic length limited to `[low, high]`."""
    import jax

    return jax.core.max_dim(low, jax.core.min_dim(high, x))
