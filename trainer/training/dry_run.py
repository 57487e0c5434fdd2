"""Forecast of a run for `--dry_run`: settings, shapes of batches, memory and disk space."""

import collections
import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from ..config import RunConfig
from ..data.batching import BatchOrder, padded_rows
from ..data.corpus import find_missing
from ..data.encoding import EncodedPairs
from ..model_dir import TRANSLATION, ModelDirectory
from .graph_memory import peak_memory
from .preparation import (
    count_parameters,
    describe,
    describe_settings,
    plan,
    prepare,
    settings_to_resume,
)
from .strategy import describe_devices, with_devices, workers_of
from .training_model import TrainingModel, make_model

_FLOAT = 4  # bytes of float32
# Files of a model directory that a preparation looks for without reading or writing them.
_LOOKED_FOR = ("checkpoints", "model.keras")


class Bucket(NamedTuple):
    """The batches of an epoch whose pairs have similar lengths."""

    length: int  # maximum length of a side, in tokens
    rows: int  # maximum number of pairs in a batch
    batches: int
    positions: int  # of both sides, including padding
    tokens: int  # of both sides


def count_buckets(pairs: EncodedPairs, config: RunConfig, devices: int = 1) -> list[Bucket]:
    """Returns the buckets of the first epoch with resolved settings, shortest first."""
    order = BatchOrder(pairs, config.batch_tokens, config.max_length, config.seed)
    batches = collections.defaultdict(list)
    for number in range(order.batches_per_epoch):
        rows, length = order.batch(number)
        sides = pairs.lengths_of(rows)
        if config.jit_compile:  # Batches are padded to the bucket's boundary.
            positions = len(sides) * length * padded_rows(config.batch_tokens, length, devices)
        else:
            positions = len(rows) * sum(side.max() for side in sides)
        batches[length].append([len(rows), positions, sides.sum()])
    found = []
    for length, sizes in sorted(batches.items()):
        rows, positions, tokens = zip(*sizes)
        found.append(Bucket(length, max(rows), len(sizes), int(sum(positions)), int(sum(tokens))))
    return found


def format_table(buckets: list[Bucket]) -> str:
    lines = ["  length    rows   batches   padding"]
    for length, rows, batches, positions, tokens in buckets:
        lines.append(f"{length:>8}{rows:>8}{batches:>10}{1 - tokens / positions:>10.1%}")
    _, _, batches, positions, tokens = map(sum, zip(*buckets))
    padding = f"{1 - tokens / positions:.1%}"
    return "\n".join(
        [*lines, f"An epoch: {batches:,} batches, {tokens:,} tokens, padding {padding}."]
    )


def memory_of_weights(model: keras.Model, config: RunConfig) -> int:
    """Returns the bytes of weights, gradients and Adam on a device, without activations."""
    # Weights, gradients and two slots of Adam; with micro-batches also the accumulated gradients.
    return _FLOAT * count_parameters(model) * (5 if config.device_tokens else 4)


def memory_of_activations(model: keras.Model, config: RunConfig, rows: int, length: int) -> int:
    """Returns the bytes of the other tensors of a step, for pairs of a length without padding.

    The step is traced, not run, and its tensors are those of `peak_memory`.
    """
    training = TrainingModel(model, config.label_smoothing)

    # Other programs than XLA's drop padding, so that they have no static shapes.
    @tf.function(autograph=False, jit_compile=True)
    def differentiate(batch):
        return training._differentiate(batch, tf.constant(1.0))

    sides = ("inputs", "targets") if config.kind == TRANSLATION else ("targets",)
    batch = dict.fromkeys(sides, tf.TensorSpec([rows, length], tf.int32))
    graph = differentiate.get_concrete_function(batch).graph
    return peak_memory(graph, graph.outputs)


def _largest_part(sizes, config, devices):
    """Returns the rows and the length of the part of a batch that needs most memory.

    `sizes` are the rows and the length of a batch over all devices, for each bucket.
    """
    parts = []
    for rows, length in sizes:
        rows = math.ceil(rows / devices)
        if config.device_tokens:  # Parts of equal size, as those of `batch_parts.split`.
            most = max(config.device_tokens // length, 1)
            rows = math.ceil(rows / math.ceil(rows / most))
        parts.append((rows, length))
    # Of parts with as many tokens, attention needs more memory for longer ones.
    return max(parts, key=lambda part: (part[0] * part[1] ** 1.5, part))


def _describe_memory(model, config, part):
    rows, length = part
    unit = "pairs" if config.kind == TRANSLATION else "texts"
    disk = _FLOAT * count_parameters(model)
    one = 3 * disk  # A checkpoint has Adam's two slots too.
    kept = config.keep_checkpoints
    if config.checkpoint_minutes is None:
        kept = min(kept, math.ceil(config.train_steps / config.checkpoint_every))
    kept += config.keep_best
    sizes = memory_of_weights(model, config), memory_of_activations(model, config, *part)
    weights, activations = map(_gib, sizes)
    return [
        f"Memory per device: {weights} for weights, gradients and Adam, and about {activations} "
        f"for the activations of {rows} {unit} of {length} tokens.",
        f"Disk space: up to {_gib(one * (kept + 1) + disk)}, {_gib(one)} per checkpoint. "
        f"Checkpoints that are kept: {kept}, while another is written.",
    ]


def _gib(size):
    return f"{size / 2**30:.2f} GiB"


def _describe_missing(missing, config):
    """Returns lines about a translation set that a run would download."""
    known = {"download": missing.download_size, "prepared data": missing.prepared_size}
    sizes = [
        f"  {name}: {'TensorFlow Datasets records no size' if size is None else _gib(size)}"
        for name, size in known.items()
    ]
    folder = Path(missing.folder)
    existing = next(parent for parent in folder.parents if parent.exists())
    return [
        f"Data: {config.data} is not in {folder}. --dry_run downloads nothing.",
        *sizes,
        f"  free disk space: {_gib(shutil.disk_usage(existing).free)}",
    ]


def forecast(config: RunConfig) -> str:
    """Returns settings, batches, memory and disk space of a run as text.

    Leaves no files, and downloads nothing. Without the data, batches are not known: parameters are
    those of a vocabulary of `vocab_size`, and memory is that of the longest pairs. With several
    workers, all are assumed to have as many GPUs as this machine.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """
    with _scratch_copy(config.model_dir) as directory:
        config = with_devices(config, settings_to_resume(directory))
        gpus = len(tf.config.list_physical_devices("GPU"))
        workers = len(workers_of(os.environ)[0]) if config.strategy == "multiworker" else 1
        is_single = config.strategy == "one"
        devices = 1 if is_single else workers * max(config.logical_devices or gpus, 1)
        missing = None
        if config.data not in (None, "files"):
            missing = find_missing(config.data, config.direction, config.data_dir)
        if missing is None:
            return "\n".join(_forecast_data(config, directory, devices))
        return "\n".join(_forecast_without_data(config, directory, devices, missing))


def _forecast_data(config, directory, devices):
    prepared = prepare(config, directory)
    config = prepared.config
    model = make_model(prepared.architecture, config.kind, config.dtype_policy)
    buckets = count_buckets(prepared.train_pairs, config, devices)
    epochs = config.train_steps / sum(bucket.batches for bucket in buckets)
    part = _largest_part([(bucket.rows, bucket.length) for bucket in buckets], config, devices)
    return [
        describe(prepared, model, devices),
        describe_devices(devices, config),
        format_table(buckets),
        f"The run: {config.train_steps:,} steps, {epochs:,.1f} epochs.",
        *_describe_memory(model, config, part),
    ]


def _forecast_without_data(config, directory, devices, missing):
    config, architecture = plan(config, directory)
    model = make_model(architecture, config.kind, config.dtype_policy)
    # The longest bucket ends at `max_length`.
    rows = max(config.batch_tokens // config.max_length, 1)
    part = _largest_part([(rows, config.max_length)], config, devices)
    return [
        *describe_settings(config, architecture),
        *_describe_missing(missing, config),
        f"Parameters: {count_parameters(model):,}",
        describe_devices(devices, config),
        "An epoch: the number of batches is known when the data is prepared.",
        *_describe_memory(model, config, part),
    ]


@contextlib.contextmanager
def _scratch_copy(path) -> Iterator[ModelDirectory]:
    """Yields a temporary model directory with the files that a preparation reads.

    Only files that it never writes are links, because writes follow links.
    """
    with tempfile.TemporaryDirectory(prefix="dry-run-") as copy:
        for entry in Path(path).resolve().iterdir() if Path(path).is_dir() else ():
            if entry.name in _LOOKED_FOR:
                os.symlink(entry, Path(copy, entry.name))
            elif entry.name == "ids":
                shutil.copytree(entry, Path(copy, entry.name), copy_function=os.symlink)
            elif entry.is_file() and not entry.name.startswith("."):
                shutil.copyfile(entry, Path(copy, entry.name))
        try:
            yield ModelDirectory(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(copy, str(path))) from error
