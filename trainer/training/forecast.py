"""Forecast of a run: its settings, the shapes of its batches, and its memory per device."""

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

from t2t_relpos.attention import dispatch
from t2t_relpos.attention.request import Request
from t2t_relpos.models import Transformer, TransformerConfig
from trainer.config import RunConfig
from trainer.data.batch_order import BatchOrder
from trainer.data.encoding import EncodedPairs
from trainer.model_dir import ModelDirectory
from trainer.training.preparation import Preparation
from trainer.training.strategy import describe_devices, with_devices, workers_of

_FLOAT = 4  # bytes of float32
# Saved by a layer for the gradient: vectors `[hidden_dim]` per token, and matrices `[T, S]` per
# head outside self-attention. Cross-attention has eight of the vectors and all of the matrices.
_SAVED_BY_ENCODER_LAYER, _SAVED_BY_DECODER_LAYER = (12, 0), (20, 3)
# Name of the implementation that gathers rows of two tables for all pairs of positions.
_GATHERS_ROWS = "rows"
_NOT_READ = ("checkpoints", "best", "logs", "nan", "model.keras", ".*")


class Bucket(NamedTuple):
    """The batches of an epoch whose pairs have similar lengths.

    Args:
        length: maximum length of a side, in tokens.
        rows: maximum number of pairs in a batch.
        batches: number of batches.
        positions: number of positions of both sides, including padding.
        tokens: number of tokens of both sides.
    """

    length: int
    rows: int
    batches: int
    positions: int
    tokens: int


def count_buckets(pairs: EncodedPairs, config: RunConfig) -> list[Bucket]:
    """Returns the buckets of the first epoch, shortest first.

    Raises:
        ValueError: if all pairs are skipped, or the longest pair does not fit into a batch.
    """
    order = BatchOrder(pairs, config.batch_tokens, config.max_length, config.seed)
    batches = collections.defaultdict(list)
    for number in range(order.batches_per_epoch):
        rows, length = order.batch(number)
        sides = [side.lengths_of(rows) for side in (pairs.sources, pairs.targets)]
        if config.jit_compile:  # Batches are padded to the bucket's boundary.
            positions = 2 * length * (config.batch_tokens // length)
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


def largest_micro_batch(buckets: list[Bucket], config: RunConfig, devices: int) -> tuple[int, int]:
    """Returns the number of pairs and the length of the largest micro-batch of a device."""
    shapes = []
    for bucket in buckets:
        rows = math.ceil(bucket.rows / devices)
        if config.device_tokens:
            rows = min(rows, max(1, config.device_tokens // bucket.length))
        shapes.append((rows, bucket.length))
    # Of two shapes of equal size, the longer one needs more memory for attention.
    return max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))


def estimate_memory(
    model: keras.Model, architecture: TransformerConfig, config: RunConfig, rows: int, length: int
) -> dict[str, int]:
    """Returns the memory that training needs on a device, in bytes by purpose.

    Args:
        model: the Transformer.
        architecture: configuration of the Transformer.
        config: the resolved settings.
        rows: number of pairs in the largest micro-batch.
        length: length of both sides of these pairs.
    """
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    # Weights, gradients and two slots of Adam; with micro-batches also the accumulated gradients.
    copies = 5 if config.device_tokens else 4
    width = _FLOAT if config.precision == "float32" else 2
    tokens = rows * length
    # Logits, the softmax and its gradient in float32, and a copy of the softmax in 16 bits.
    logits = 3 * _FLOAT + (width if width < _FLOAT else 0)
    return {
        "weights, gradients, Adam": copies * _FLOAT * weights,
        "logits, softmax, gradient": tokens * architecture.vocab_size * logits,
        "activations (estimated)": width * _activations(architecture, config, tokens, length),
    }


def _activations(architecture, config, tokens, length):
    """Returns an estimate of the number of values that all layers save for their gradients."""
    d, inner = architecture.hidden_dim, architecture.intermediate_dim
    heads = architecture.num_heads
    requests = (_self_attention(architecture, config, length, causal) for causal in (False, True))
    encoder, decoder = (dispatch.select(request)[0].implementation for request in requests)
    saved, gathered = 0, 0
    for layers, vectors, matrices, implementation in (
        (architecture.num_encoder_layers, *_SAVED_BY_ENCODER_LAYER, encoder),
        (architecture.num_decoder_layers, *_SAVED_BY_DECODER_LAYER, decoder),
    ):
        matrices += implementation.saved_matrices
        saved += layers * (vectors * d + 2 * inner + matrices * heads * length)
        if implementation.name == _GATHERS_ROWS:
            gathered += layers * 2 * length**2 * (d // heads if architecture.share_heads else d)
    return tokens * saved + gathered


def _self_attention(architecture, config, length, causal):
    relative = architecture.max_relative_position if architecture.relative else None
    options = {"causal": causal, "rematerialize": False, "xla": bool(config.jit_compile)}
    return Request(length, length, relative, **options)


def forecast(config: RunConfig) -> str:
    """Returns settings, batches and estimated memory of a run as text. Leaves no files.

    With several workers, all are assumed to have as many GPUs as this machine.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """
    with _scratch_copy(config.model_dir) as directory:
        prepared = Preparation(with_devices(config), directory)
        config, architecture = prepared.config, prepared.architecture
        model = Transformer(architecture)
        model({side: np.ones((1, 1), "int32") for side in ("inputs", "targets")})
        found = count_buckets(prepared.train_pairs, config)
        gpus = len(tf.config.list_physical_devices("GPU"))
        workers = len(workers_of(os.environ)[0]) if config.strategy == "multiworker" else 1
        is_single = config.strategy == "one"
        devices = 1 if is_single else workers * max(config.logical_devices or gpus, 1)
        rows, length = largest_micro_batch(found, config, devices)
        sizes = estimate_memory(model, architecture, config, rows, length)
        sizes["total (estimated)"] = sum(sizes.values())
        return "\n".join(
            [
                prepared.describe(model),
                describe_devices(devices, config),
                format_table(found),
                "Memory per device:",
                *(f"  {name:<36}{size / 2**30:8.2f} GiB" for name, size in sizes.items()),
                f"  (largest micro-batch: {rows} x {length} tokens)",
            ]
        )


@contextlib.contextmanager
def _scratch_copy(path) -> Iterator[ModelDirectory]:
    """Yields a temporary model directory with links to the files that a run reads."""
    with tempfile.TemporaryDirectory(prefix="dry-run-") as copy:
        if Path(path).is_dir():
            shutil.copytree(
                Path(path).resolve(),
                copy,
                ignore=shutil.ignore_patterns(*_NOT_READ),
                copy_function=os.symlink,
                dirs_exist_ok=True,
            )
        try:
            yield ModelDirectory(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(copy, str(path))) from error
