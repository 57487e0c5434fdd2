"""Forecast of a run for `--dry_run`: settings, parameters, batches and bytes of weights."""

import collections
import os
from typing import NamedTuple

import keras
import tensorflow as tf

from ..config import RunConfig
from ..data.batching import BatchOrder, padded_rows
from ..data.corpus import describe_missing
from ..data.encoding import EncodedPairs
from ..model_dir import ModelDirectory
from .preparation import (
    count_parameters,
    describe,
    describe_settings,
    find_start,
    make_architecture,
    prepare,
    recorded_settings,
    resolve_settings,
)
from .strategy import describe_devices, device_settings, workers_of
from .training_model import make_model

_FLOAT = 4  # bytes of float32


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


def _describe_memory(model, config):
    return (
        f"Memory per device: {_gib(memory_of_weights(model, config))} for weights, gradients and "
        "Adam, without activations."
    )


def _gib(size):
    return f"{size / 2**30:.2f} GiB"


def forecast(config: RunConfig) -> str:
    """Returns settings, batches and bytes of the weights of a run as text.

    Leaves no files, and downloads nothing. Without the data, batches are not known, and parameters
    are those of a vocabulary of `vocab_size`. With several workers, all are assumed to have as many
    GPUs as this machine.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """
    directory = ModelDirectory(config.model_dir)
    settings = device_settings(config, recorded_settings(directory))
    gpus = len(tf.config.list_physical_devices("GPU"))
    workers = len(workers_of(os.environ)[0]) if settings["strategy"] == "multiworker" else 1
    is_single = settings["strategy"] == "one"
    devices = 1 if is_single else workers * max(config.logical_devices or gpus, 1)
    missing = None
    if config.data not in (None, "files"):
        missing = describe_missing(config.data, config.direction, config.data_dir)
    if missing is None:
        prepared = prepare(config, directory, settings, dry_run=True)
        return "\n".join(_forecast_data(prepared, devices))
    start = find_start(config, directory)
    config = resolve_settings(config, start, settings)
    architecture = make_architecture(config, start.parent)
    return "\n".join(_forecast_without_data(config, architecture, devices, missing))


def _forecast_data(prepared, devices):
    config = prepared.config
    model = make_model(prepared.architecture, config.kind, config.dtype_policy)
    buckets = count_buckets(prepared.train_pairs, config, devices)
    epochs = config.train_steps / sum(bucket.batches for bucket in buckets)
    return [
        describe(prepared, model, devices),
        describe_devices(devices, config),
        format_table(buckets),
        f"The run: {config.train_steps:,} steps, {epochs:,.1f} epochs.",
        _describe_memory(model, config),
    ]


def _forecast_without_data(config, architecture, devices, missing):
    model = make_model(architecture, config.kind, config.dtype_policy)
    return [
        *describe_settings(config, architecture),
        missing,
        f"Parameters: {count_parameters(model):,}",
        describe_devices(devices, config),
        "An epoch: the number of batches is known when the data is prepared.",
        _describe_memory(model, config),
    ]
