"""Which devices train."""

import tensorflow as tf

STRATEGIES = ("one", "mirrored")


def make_strategy(name: str = "one", logical_devices: int = 0) -> tf.distribute.Strategy:
    """The strategy of a run.

    Args:
        name: "one": a single device, the first GPU where there is one. "mirrored": all GPUs, each with a part of every batch.
        logical_devices: with "mirrored", divide the CPU into this many devices instead of using GPUs, in order to try the
            training on several devices without them. TensorFlow must not have been used before in the process.

    Raises:
        ValueError: for an unknown name, and where the devices are not there.
    """
    if name not in STRATEGIES:
        raise ValueError(f"Expected strategy to be one of {', '.join(STRATEGIES)}. Received: {name!r}.")
    if name == "one":
        if logical_devices:
            raise ValueError(
                f"Expected logical_devices only with the strategy mirrored. Received: {logical_devices} with the strategy one. "
                "Add --strategy=mirrored, or leave --logical_devices out."
            )
        return tf.distribute.get_strategy()
    if logical_devices:
        return tf.distribute.MirroredStrategy(_divide_cpu(logical_devices))
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        raise ValueError(
            "Expected at least one GPU for the strategy mirrored. Received: a machine where TensorFlow finds none. "
            "Use --strategy=one, or try it on the CPU with --logical_devices=2."
        )
    return tf.distribute.MirroredStrategy([device.name for device in gpus])


def _divide_cpu(count):
    if count < 2:
        raise ValueError(f"Expected logical_devices to be at least 2. Received: {count}.")
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        raise ValueError(
            f"Expected TensorFlow to be unused before its CPU is divided into {count} devices. Received: a process in which it "
            "has run already. Make the strategy first."
        ) from error
    return [device.name for device in tf.config.list_logical_devices("CPU")]
