"""Which devices train."""

import tensorflow as tf

from trainer.training.cluster import Cluster

STRATEGIES = ("auto", "one", "mirrored", "multiworker")


def choose_strategy(name: str, gpus: int, logical_devices: int = 0) -> str:
    """What "auto" stands for: "mirrored" if there are several devices, "one" if there is
    none to share with.

    Args:
        name: one of STRATEGIES.
        gpus: how many this machine has.
        logical_devices: how many the CPU is to be divided into.

    Raises:
        ValueError: for an unknown name.

    Example:

    >>> [choose_strategy("auto", gpus=n) for n in (0, 8)] + [choose_strategy("one", gpus=8)]
    ['one', 'mirrored', 'one']
    """
    if name not in STRATEGIES:
        raise ValueError(
            f"Expected strategy to be one of {', '.join(STRATEGIES)}. Received: {name!r}."
        )
    if name != "auto":
        return name
    return "mirrored" if gpus > 1 or logical_devices else "one"


def make_strategy(name: str = "auto", logical_devices: int = 0) -> tf.distribute.Strategy:
    """The strategy of a run.

    Args:
        name: "one": a single device, the first GPU if there is one. "mirrored": all GPUs of this
            machine, each with a part of every batch. "multiworker": those of all machines in the
            environment variable TF_CONFIG, or their CPUs; waits until a process runs on each.
            "auto": see `choose_strategy`.
        logical_devices: with "mirrored", divide the CPU into this many devices instead of using
            GPUs, in order to try the training on several devices without them. TensorFlow must not
            have been used before in the process.

    Raises:
        ValueError: for an unknown name, where the devices are not available, and for a TF_CONFIG
            that is missing or wrong.
    """
    name = choose_strategy(name, len(tf.config.list_physical_devices("GPU")), logical_devices)
    if logical_devices and name != "mirrored":
        raise ValueError(
            "Expected logical_devices only with the strategy mirrored. Received: "
            f"{logical_devices} with the strategy {name}. "
            "Add --strategy=mirrored, or leave --logical_devices out."
        )
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "multiworker":
        return _join_cluster()
    if logical_devices:
        return tf.distribute.MirroredStrategy(_divide_cpu(logical_devices))
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        raise ValueError(
            "Expected at least one GPU for the strategy mirrored. Received: a machine where "
            "TensorFlow finds none. "
            "Use --strategy=one, or try it on the CPU with --logical_devices=2."
        )
    return tf.distribute.MirroredStrategy([device.name for device in gpus])


def _join_cluster():
    cluster = Cluster.from_environment()
    print(
        f"Worker {cluster.index} of {len(cluster.workers)} waits for the others: "
        f"{', '.join(cluster.workers)}.",
        flush=True,
    )
    # It notes every sum over the workers that it plans.
    tf.get_logger().setLevel("WARNING")
    return tf.distribute.MultiWorkerMirroredStrategy()


def _divide_cpu(count):
    if count < 2:
        raise ValueError(f"Expected logical_devices to be at least 2. Received: {count}.")
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise ValueError(
            f"Expected TensorFlow to be unused before its CPU is divided into {count} devices. "
            "Received: a process in which it "
            "has run already. Make the strategy first."
        ) from error
    return [device.name for device in tf.config.list_logical_devices("CPU")]
