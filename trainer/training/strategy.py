"""Devices and processes of a run: selection of the strategy, and communication of workers."""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping

import tensorflow as tf
from absl import logging

from ..config import RunConfig
from ..errors import plain_message
from ..streams import write_line
from .compiled_steps import xla_error

_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
    '"task": {"type": "worker", "index": 0}}\', with the same '
    "addresses on every worker and a different index on each"
)
# TensorFlow raises one of these errors if a process is lost, depending on the current operation.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


def device_settings(config: RunConfig, recorded: Mapping | None = None) -> dict:
    """Returns the settings `strategy` and `jit_compile`, resolved for this machine.

    "auto" is replaced by "mirrored" if there are several devices, else by "one". By default, a
    resumed run with the same strategy keeps its use of XLA. Other runs use XLA if they train on a
    single GPU. Deterministic runs don't use XLA. `recorded` are the settings of the run that is
    resumed.
    """
    recorded = recorded or {}
    gpus = len(tf.config.list_physical_devices("GPU"))
    strategy, jit_compile = config.strategy, config.jit_compile
    if strategy == "auto":
        strategy = "mirrored" if gpus > 1 or config.logical_devices else "one"
    if config.deterministic:
        jit_compile = False
    elif jit_compile is None and recorded.get("strategy") == strategy:
        jit_compile = recorded.get("jit_compile")
    if jit_compile is None:
        jit_compile = strategy == "one" and gpus > 0
    return {"strategy": strategy, "jit_compile": jit_compile}


def check_xla(settings: dict, strategy: tf.distribute.Strategy) -> dict:
    """Returns the `device_settings`, without XLA if it fails on one of several devices.

    This runs a small compiled program on each device. A failure is logged as a warning.
    """
    if not settings["jit_compile"] or settings["strategy"] != "mirrored":
        return settings
    error = xla_error(strategy)
    if error is None:
        return settings
    logging.warning("Training continues without XLA. A small compiled program failed: %s", error)
    return settings | {"jit_compile": False}


def make_strategy(name: str, logical_devices: int = 0) -> tf.distribute.Strategy:
    """Returns the strategy of a run.

    Args:
        name: "one": one device, the first GPU if there is one. "mirrored": all GPUs of this
            machine. "multiworker": the GPUs of all machines in the environment variable TF_CONFIG,
            or their CPUs; waits for a process on each.
        logical_devices: with "mirrored", split the CPU into this number of devices instead of using
            GPUs. TensorFlow must not have been used in the process.
    """
    if logical_devices and name != "mirrored":
        raise ValueError(
            "Expected logical_devices only with the strategy mirrored. Received: "
            f"{logical_devices} with the strategy {name}. "
            "Add --strategy=mirrored, or leave --logical_devices out."
        )
    if name == "one":
        return tf.distribute.get_strategy()
    # At lower levels, TensorFlow logs the devices and every sum over them.
    tf.get_logger().setLevel("WARNING")
    if name == "multiworker":
        workers, index = workers_of(os.environ)
        others = f"{index} of {len(workers)} is waiting for the others: {', '.join(workers)}."
        write_line(f"Worker {others}")
        return tf.distribute.MultiWorkerMirroredStrategy()
    if logical_devices:
        parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, parts)
    devices = tf.config.list_logical_devices("CPU" if logical_devices else "GPU")
    if not devices:
        raise ValueError(
            "Expected at least one GPU for the strategy mirrored. Received: a machine where "
            "TensorFlow finds none. Use --strategy=one, or try the strategy on the CPU with "
            "--logical_devices=2."
        )
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def describe_devices(count: int, config: RunConfig) -> str:
    """Returns a line with the number and the type of the devices of a run."""
    has_gpus = tf.config.list_physical_devices("GPU") and not config.logical_devices
    return f"Devices: {count} {'GPU' if has_gpus else 'CPU'}"


def workers_of(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Returns the addresses of all workers in TF_CONFIG, and the index of this process.

    Raises:
        ValueError: if TF_CONFIG is missing or does not define a cluster of workers.

    Example:

    >>> from trainer.training.strategy import workers_of
    >>> config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    >>> workers_of({"TF_CONFIG": config})
    (['a:1', 'b:1'], 1)
    """
    text = environment.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        (kind, workers), *others = config["cluster"].items()
        is_valid = (
            not others
            and kind == config["task"]["type"] == "worker"
            and len(workers) == len({*workers}) > 1
            and all(":" in worker for worker in workers)
            and config["task"]["index"] in range(len(workers))
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ValueError(
            "Expected the environment variable TF_CONFIG with the addresses of two or more workers "
            f"and the index of this one. Received: {text or 'none'}. Set it on every worker, like "
            f"{_EXAMPLE}."
        )
    return workers, config["task"]["index"]


class WorkerLostError(RuntimeError):
    """Another process of the run has ended."""


class WorkerGroup:
    """The processes of a strategy, or the only one. The chief, worker 0, writes files and prints.

    Attributes:
        size: number of processes.
        index: number of this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        resolver = strategy.cluster_resolver
        self.size = len(resolver.cluster_spec().job_tasks("worker")) if resolver else 1
        self.index = resolver.task_id if resolver and self.size > 1 else 0
        self._addresses = resolver.cluster_spec().job_tasks("worker") if self.size > 1 else []
        self._have_met = False
        self._from_first = tf.function(
            lambda value: strategy.run(_from_first_replica, args=(value,))
        )

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def wait(self):
        """Waits until all workers call this method."""
        self.from_chief(0.0)

    @contextlib.contextmanager
    def chief_first(self):
        """Runs the `with` block on the chief first, then on the other workers."""
        if not self.is_chief:
            self.wait()
        yield
        if self.is_chief:
            self.wait()

    def from_chief(self, value: float | None) -> float | None:
        """Returns the chief's value. All workers must call this method at the same point."""
        if self.size == 1:
            return value
        number = math.nan if value is None else value
        results = self._from_first(tf.constant(number, tf.float64))
        self._have_met = True
        found = float(self._strategy.experimental_local_results(results)[0])
        return None if math.isnan(found) else found

    def check_same(self, value: int, description: str):
        """Raises ValueError on workers whose integer, below 2^53, differs from the chief's.

        `description` is the expected state in the error message, such as "the same settings".
        """
        expected = int(self.from_chief(float(value)))
        if value != expected:
            raise ValueError(
                f"Expected {description} on all workers. Received: {value} on worker "
                f"{self.index}, {expected} on worker 0."
            )

    @contextlib.contextmanager
    def detecting_lost_workers(self, remedy: Callable[[], str]):
        """Raises WorkerLostError for TensorFlow's errors if another process has ended.

        `remedy` returns the end of the error message, with instructions.
        """
        try:
            yield
        except _LOST as error:
            if self.size == 1:
                raise
            cause = f"{type(error).__name__}: {plain_message(error)}"
            lost, own = self._lost_worker(cause), f"worker {self.index} of {self.size}"
            if self._have_met:
                message = f"Lost connection to {lost} (detected by {own}: {cause}). {remedy()}"
            else:
                message = (
                    f"Expected a connection of all {self.size} workers. Received: {own} never "
                    f"reached {lost} ({cause}). Compare TF_CONFIG on all workers: the same "
                    "addresses in the same order, and the index of each. Check that their ports "
                    "are open, then run the same command on all workers."
                )
            raise WorkerLostError(message) from error

    def _lost_worker(self, cause):
        """Returns the worker that TensorFlow's message names, with its address, or "a worker"."""
        others = {i: x for i, x in enumerate(self._addresses) if i != self.index}
        named = [
            i
            for i, address in others.items()
            if re.search(rf"task:{i}\b|:{address.rpartition(':')[2]}\b", cause)
        ]
        known = named if len(named) == 1 else [*others]
        return f"worker {known[0]} at {others[known[0]]}" if len(known) == 1 else "a worker"


def _from_first_replica(value):
    context = tf.distribute.get_replica_context()
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    return context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.where(is_first, value, tf.zeros_like(value))
    )
