"""Forecast of a run: the shapes of its batches and the memory that they need."""

import contextlib
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from t2t_relpos.attention import dispatch
from t2t_relpos.models import Transformer, TransformerConfig
from trainer.config import RunConfig
from trainer.data.batch_order import BatchOrder
from trainer.data.encoding import EncodedPairs
from trainer.model_dir import ModelDirectory
from trainer.training.describe_run import describe
from trainer.training.preparation import Preparation
from trainer.training.strategy import choose_strategy

_FLOAT = 4  # bytes of float32


@dataclasses.dataclass
class Bucket:
    """The batches of an epoch whose sentences are of like length.

    Args:
        length: the longest sentence that they may have, in tokens.
        rows: the most sentence pairs in one.
        batches: how many there are.
        positions: of both sides, padding included.
        tokens: of both sides.
    """

    length: int
    rows: int = 0
    batches: int = 0
    positions: int = 0
    tokens: int = 0

    def __str__(self):
        return f"{self.length:>8}{self.rows:>8}{self.batches:>10}{_share(self):>10}"


def buckets(pairs: EncodedPairs, config: RunConfig) -> list[Bucket]:
    """The buckets of the first epoch, shortest first.

    Raises:
        ValueError: as `trainer.data.batch_order.BatchOrder`.
    """
    plan = BatchOrder(pairs, config.batch_tokens, config.max_length, config.seed)
    found = {}
    for number in range(plan.batches_per_epoch):
        rows, length = plan.batch(number)
        bucket = found.setdefault(length, Bucket(length))
        sides = [side.lengths_of(rows) for side in (pairs.sources, pairs.targets)]
        bucket.rows = max(bucket.rows, len(rows))
        bucket.batches += 1
        bucket.tokens += int(sum(side.sum() for side in sides))
        # XLA gets few shapes.
        full = 2 * length * (config.batch_tokens // length)
        bucket.positions += (
            full if config.jit_compile else len(rows) * int(sum(side.max() for side in sides))
        )
    return [found[length] for length in sorted(found)]


def table(buckets: list[Bucket]) -> str:
    """The buckets, a line each, and the sum."""
    whole = Bucket(0, batches=sum(bucket.batches for bucket in buckets))
    for name in ("positions", "tokens"):
        setattr(whole, name, sum(getattr(bucket, name) for bucket in buckets))
    head = "  length    rows   batches   padding"
    end = f"An epoch: {whole.batches:,} batches, {whole.tokens:,} tokens, padding {_share(whole)}."
    return "\n".join([head, *map(str, buckets), end])


def _share(bucket):
    return f"{1 - bucket.tokens / bucket.positions:.1%}"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device while it trains.

    Args:
        state: weights, their gradients and Adam's two slots: exact.
        logits: of the largest piece of a batch, with what the loss keeps of them and their
            gradient.
        layers: what the layers keep of that piece for their gradients: an estimate.
        formula: how `layers` is estimated.
    """

    state: int
    logits: int
    layers: int
    formula: str

    def __str__(self):
        names = {
            "weights, gradients, Adam": self.state,
            "logits, twice, and their gradient": self.logits,
            "activations (estimated)": self.layers,
            "in all, about": self.state + self.logits + self.layers,
        }
        lines = [f"  {name:<36}{size / 2**30:8.2f} GiB" for name, size in names.items()]
        return "\n".join(["Memory of a device:", *lines, f"  ({self.formula})"])


def memory(
    model: keras.Model, architecture: TransformerConfig, config: RunConfig, rows: int, length: int
) -> Memory:
    """What a device needs that computes so many rows at once, both sides being `length` long."""
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    # Pieces: the sum of the gradients, and those of the piece.
    copies = 5 if config.device_tokens else 4
    tokens, width = rows * length, 4 if config.precision == "float32" else 2
    seen = architecture.num_heads * length
    d, inner = architecture.hidden_dim, architecture.intermediate_dim
    implementations = [_implementation(architecture, length, causal) for causal in (False, True)]
    kept_by_encoder = implementations[0].saved_matrices
    # Cross-attention saves three matrices more.
    kept_by_decoder = implementations[1].saved_matrices + 3
    encoder = architecture.num_encoder_layers * (12 * d + 2 * inner + kept_by_encoder * seen)
    decoder = architecture.num_decoder_layers * (20 * d + 2 * inner + kept_by_decoder * seen)
    rows_of = (
        (1 if architecture.share_heads else architecture.num_heads) * d // architecture.num_heads
    )
    num_layers = architecture.num_encoder_layers, architecture.num_decoder_layers
    gathering = sum(
        count for row, count in zip(implementations, num_layers) if row.name == "short_rows"
    )
    looked_up = 2 * length**2 * rows_of * gathering
    logits = tokens * architecture.vocab_size * (3 * _FLOAT + (0 if width == _FLOAT else width))
    formula = (
        f"activations: {width} bytes for each of {rows} x {length} tokens, times 12 D + 2 F + "
        f"{kept_by_encoder} N L in a "
        f"layer of the encoder and 20 D + 2 F + {kept_by_decoder} N L of the decoder"
        + (", and L x L looked-up rows of each relative table" if looked_up else "")
        + f": D = {d}, F = {inner}, N = {architecture.num_heads}, L = {length}"
    )
    return Memory(
        copies * _FLOAT * weights,
        logits,
        width * (tokens * (encoder + decoder) + looked_up),
        formula,
    )


def _implementation(architecture, length, causal):
    """Returns the implementation of self-attention in training."""
    request = dispatch.Request(
        length,
        length,
        architecture.max_relative_position if architecture.relative else None,
        causal=causal,
        rematerialize=False,
    )
    return dispatch.select(request)[0].implementation


def largest(buckets: list[Bucket], config: RunConfig, devices: int) -> tuple[int, int]:
    """Rows and length of the largest piece of a batch that a device computes at once."""

    def of_device(bucket):
        rows = math.ceil(bucket.rows / devices)
        return (
            min(rows, max(1, config.device_tokens // bucket.length))
            if config.device_tokens
            else rows
        )

    # Of like sizes the longer, whose attention has more to keep.
    rows, length = max(
        ((of_device(bucket), bucket.length) for bucket in buckets),
        key=lambda shape: (shape[0] * shape[1], shape[1]),
    )
    return rows, length


def forecast(config: RunConfig) -> str:
    """What `trainer.train` would train, and with what, as text. Leaves no files.

    Raises:
        ValueError: for everything that is wrong with the settings, the data or the model directory.
    """
    with _scratch(config.model_dir) as directory:
        prepared = Preparation(config, directory)
        model = Transformer(prepared.architecture)
        model({side: np.ones((1, 1), "int32") for side in ("inputs", "targets")})
        resolved, pairs = prepared.config, prepared.train_pairs
        found = buckets(pairs, resolved)
        gpus = len(tf.config.list_physical_devices("GPU"))
        shares_out = choose_strategy(resolved.strategy, gpus, resolved.logical_devices) != "one"
        devices = max(resolved.logical_devices or gpus, 1) if shares_out else 1
        needed = memory(model, prepared.architecture, resolved, *largest(found, resolved, devices))
        return "\n".join(
            [describe(resolved, pairs, model), f"Devices: {devices}", table(found), str(needed)]
        )


@contextlib.contextmanager
def _scratch(path) -> Iterator[ModelDirectory]:
    """A model directory for a moment, with what one that exists gives to a run; a run may be under
    way there.
    """
    with tempfile.TemporaryDirectory(prefix="dry-run-") as scratch:
        source, copy = Path(path), Path(scratch)
        for name in ("config.json", "run.json", "vocab.model", "vocab.subwords"):
            if (source / name).is_file():
                shutil.copyfile(source / name, copy / name)
        for split in (source / "ids").glob("*/ids-*"):
            (copy / "ids" / split.parent.name).mkdir(parents=True, exist_ok=True)
            (copy / "ids" / split.parent.name / split.name).symlink_to(split.resolve())
        yield ModelDirectory(copy)
