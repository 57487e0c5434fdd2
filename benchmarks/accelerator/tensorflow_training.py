"""Trains a Transformer on one GPU and on several, with and without XLA. A part of `check`.

All runs have the same initial weights, the same batches and no dropout, so their losses differ by
rounding only. Batches contain padding. Without XLA, TensorFlow traces a step with unknown lengths,
as `trainer.train` does.
"""

import dataclasses
import gc
import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks import memory
from t2t_relpos.models import Transformer, TransformerConfig
from trainer.training.batch_parts import shard
from trainer.training.compiled_steps import xla_error
from trainer.training.strategy import make_strategy
from trainer.training.training_model import TrainingModel

HEADER = ["devices", "XLA", "first loss", "last loss", "largest difference", "programs"]
HEADER += ["first step s", "steps/s", "peak MB of a device", "rows"]
# Largest relative difference of the losses of two runs. GPUs round products to TF32.
LIMIT = 1e-2


@dataclasses.dataclass
class Run:
    """A training run: devices, whether XLA compiles it, and its results.

    `losses` and `seconds` are those of every step; `programs` is the number of XLA programs.
    """

    strategy: tf.distribute.Strategy
    jit_compile: bool
    losses: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    programs: int = 0
    megabytes: float = 0.0

    def __str__(self):
        count = self.strategy.num_replicas_in_sync
        devices = "1 device" if count == 1 else f"{count} devices"
        return f"training, {devices}, {'with' if self.jit_compile else 'without'} XLA"

    def difference(self, other) -> float:
        """Returns the largest relative difference of the losses."""
        return float(np.max(np.abs(np.divide(self.losses, other.losses) - 1.0)))

    def cells(self, first) -> list[str]:
        """Returns the cells of the columns of HEADER but the last. `first` is the first run."""
        count, xla = self.strategy.num_replicas_in_sync, "yes" if self.jit_compile else "no"
        losses = [f"{loss:.4f}" for loss in (self.losses[0], self.losses[-1])]
        # The first steps trace and compile.
        rate = 1.0 / np.median(self.seconds[len(self.seconds) // 4 :])
        cells = [f"{self.difference(first):.1e}", f"{self.programs}", f"{self.seconds[0]:.1f}"]
        return [f"{count}", xla, *losses, *cells, f"{rate:.2f}", f"{self.megabytes:,.0f}"]

    def train(self, preset: str, sizes: tuple[int, int, int], steps: int):
        """Trains a Transformer.

        Args:
            preset: name of the architecture.
            sizes: vocabulary size, number of sentence pairs (rounded up to a multiple of the
                devices), and length of both sides.
            steps: number of steps.
        """
        if self.jit_compile and (error := xla_error(self.strategy)) is not None:
            raise RuntimeError(error)
        gc.collect()
        before = _reset_peak()
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            config = TransformerConfig.from_preset(preset, vocab_size=sizes[0], dropout=0.0)
            config = dataclasses.replace(config, attention_dropout=0.0, activation_dropout=0.0)
            model = TrainingModel(Transformer(config), label_smoothing=0.1)
            model.compile(keras.optimizers.Adam(1e-3), jit_compile=self.jit_compile)
        clock = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: self.seconds.append(-time.perf_counter()),
            on_epoch_end=lambda *_: self.seconds.append(self.seconds.pop() + time.perf_counter()),
        )
        data = shard(_batches(*sizes).repeat(), self.strategy)
        options = {"epochs": steps, "steps_per_epoch": 1, "verbose": 0, "shuffle": False}
        history = model.fit(data, callbacks=[clock], **options).history
        self.losses, self.programs = history["loss"], int(max(history.get("programs", [0])))
        self.megabytes = _peak() - before


def runs(logical_gpus: int = 0, memory_mb: int | None = None) -> list[Run]:
    """Returns the runs on one device and, if there are several, on all of them.

    The first one is that to which losses are compared. Those on all devices follow.

    Args:
        logical_gpus: split the first GPU, or the CPU without a GPU, into this number of devices
            instead of using all GPUs. TensorFlow must not have been used in the process.
        memory_mb: memory of each logical GPU.
    """
    one = tf.distribute.get_strategy()
    if logical_gpus:
        strategy = _split_strategy(logical_gpus, memory_mb)
    elif len(tf.config.list_physical_devices("GPU")) > 1:
        strategy = make_strategy("mirrored")
    else:
        return [Run(one, False), Run(one, True)]
    return [Run(one, False), Run(strategy, False), Run(strategy, True), Run(one, True)]


def _split_strategy(count, memory_mb):
    """Returns a strategy over logical devices of one GPU, or of the CPU without a GPU."""
    tf.get_logger().setLevel("WARNING")  # At lower levels, TensorFlow logs every sum.
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    device = tf.config.list_physical_devices(kind)[0]
    tf.config.set_visible_devices(device, kind)
    # Several logical GPUs need limits, and a CPU has none.
    limits = {"memory_limit": memory_mb} if kind == "GPU" else {}
    part = tf.config.LogicalDeviceConfiguration(**limits)
    tf.config.set_logical_device_configuration(device, [part] * count)
    names = [logical.name for logical in tf.config.list_logical_devices(kind)]
    # NCCL, the default, refuses several devices of one GPU.
    one_device = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(names, cross_device_ops=one_device)


def _batches(vocab_size, pairs, length):
    """Returns a dataset of two batches. The last quarter of every other sentence is padding."""
    rng, devices = np.random.default_rng(1), len(_gpus() or tf.config.list_logical_devices("CPU"))
    pairs = -(-pairs // devices) * devices
    ids = rng.integers(2, vocab_size, (2, 2, pairs, length)).astype("int32")
    ids[:, :, ::2, max(1, 3 * length // 4) :] = 0
    spec = {side: tf.TensorSpec([None, None], tf.int32) for side in ("inputs", "targets")}
    batches = [dict(zip(spec, sides)) for sides in ids]
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def _gpus():
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return [name.removeprefix("/device:") for name in names]


def _reset_peak():
    """Resets the peak. Returns 0 with GPUs, without them the memory of the process in MB."""
    for gpu in _gpus():
        tf.config.experimental.reset_memory_stats(gpu)
    return 0.0 if _gpus() else memory.reset_peak()


def _peak():
    """Returns the peak in MB: of the GPU with the highest one, or of the process."""
    peaks = [tf.config.experimental.get_memory_info(gpu)["peak"] / 2**20 for gpu in _gpus()]
    return max(peaks) if peaks else memory.peak()
