"""Forecast of a run for `--dry_run`: settings, shapes of batches, and memory of the weights."""

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
import numpy as np
import tensorflow as tf

from t2t_relpos.models import Transformer
from trainer.config import RunConfig
from trainer.data.batching import BatchOrder, padded_rows
from trainer.data.encoding import EncodedPairs
from trainer.model_dir import ModelDirectory
from trainer.training.preparation import prepare, settings_to_resume
from trainer.training.strategy import describe_devices, with_devices, workers_of

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
    """Returns the buckets of the first epoch with resolved settings, shortest first.

    Raises:
        ValueError: if all pairs are skipped, or the longest pair does not fit into a batch.
    """
    order = BatchOrder(pairs, config.batch_tokens, config.max_length, config.seed)
    batches = collections.defaultdict(list)
    for number in range(order.batches_per_epoch):
        rows, length = order.batch(number)
        sides = [side.lengths_of(rows) for side in (pairs.sources, pairs.targets)]
        if config.jit_compile:  # Batches are padded to the bucket's boundary.
            positions = 2 * length * padded_rows(config.batch_tokens, length, devices)
        else:
            positions = len(rows) * sum(side.max() for side in sides)
        batches[length].append([len(rows), positions, sum(side.sum() for side in sides)])
    found = []
    for length, sizes in sorted(batches.items()):
        rows, positions, tokens = zip(*sizes)
        found.append(Bucket(length, max(rows), len(sizes), int(sum(positions)), int(sum(tokens))))
    return found


def format_table(buckets: list[Bucket]) -> str:
    """Returns a table with a line for each bucket and a line of totals."""
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
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    # Weights, gradients and two slots of Adam; with micro-batches also the accumulated gradients.
    return _FLOAT * weights * (5 if config.device_tokens else 4)


def forecast(config: RunConfig) -> str:
    """Returns settings, batches and memory of the weights of a run as text. Leaves no files.

    With several workers, all are assumed to have as many GPUs as this machine.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """
    with _scratch_copy(config.model_dir) as directory:
        config = with_devices(config, settings_to_resume(directory))
        prepared = prepare(config, directory)
        config, model = prepared.config, Transformer(prepared.architecture)
        model({side: np.ones((1, 1), "int32") for side in ("inputs", "targets")})
        gpus = len(tf.config.list_physical_devices("GPU"))
        workers = len(workers_of(os.environ)[0]) if config.strategy == "multiworker" else 1
        is_single = config.strategy == "one"
        devices = 1 if is_single else workers * max(config.logical_devices or gpus, 1)
        memory = memory_of_weights(model, config) / 2**30
        return "\n".join(
            [
                prepared.describe(model, devices),
                describe_devices(devices, config),
                format_table(count_buckets(prepared.train_pairs, config, devices)),
                f"Memory per device: {memory:.2f} GiB for weights, gradients and Adam, without "
                "activations.",
            ]
        )


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
