"""Builds the steps that the attention benchmark measures: attention cores and encoder layers."""

import dataclasses
import inspect

import keras
import numpy as np
from keras import ops

from benchmarks.attention.compiled_steps import compile_step
from benchmarks.attention.tensor2tensor_attention import Tensor2TensorAttention
from benchmarks.common import memory
from t2t_relpos import RelativeMultiHeadAttention
from t2t_relpos.attention import (
    attend,
    causal_mask,
    dot_product_attention_relative,
    key_padding_mask,
)
from t2t_relpos.attention.dropout import AttentionDropout

NUM_HEADS, KEY_DIM, WIDTH, INTERMEDIATE_DIM = 8, 64, 512, 2048
TOKENS_PER_BATCH = 2048
IMPLEMENTATIONS = {
    "core": ("plain", "relative", "flash", "tensor2tensor", "matmul"),
    "attention": ("keras", "plain", "relative", "flash"),
    "layer": ("plain", "keras", "relative", "flash", "tensor2tensor"),
}
# Older checkouts, to which `--baseline` compares, call the argument `recompute`.
REMATERIALIZE = "rematerialize"
if REMATERIALIZE not in inspect.signature(attend).parameters:
    REMATERIALIZE = "recompute"


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the printed table.

    Args:
        part: "core", attention of given queries, keys and values; "attention", the multi-head
            attention layer; or "layer", an encoder layer.
        direction: "bidirectional" or "causal".
        passes: "forward", without dropout, or "both", forward and backward.
        max_relative_position: K.
        length: n.
    """

    part: str
    direction: str
    passes: str
    max_relative_position: int
    length: int

    @property
    def causal(self):
        return self.direction == "causal"

    @property
    def training(self):
        return self.passes == "both"

    @property
    def batch_size(self):
        return max(1, TOKENS_PER_BATCH // self.length)


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings that are the same for all cases.

    Args:
        padding: whether the last quarter of every other sequence is padding.
        flash_attention: whether this library's attention uses memory linear in length.
        dropout: rate of the dropout of attention weights.
        xla: whether TensorFlow compiles with XLA.
    """

    padding: bool = False
    flash_attention: bool = False
    dropout: float = 0.0
    xla: bool = False


def make_step(implementation: str, case: Case, options: Options):
    """Returns a function without arguments that runs one step and waits for its result."""
    make = make_core if case.part == "core" else make_layer
    function, tensors, variables = make(implementation, case, options)
    return compile_step(function, tensors, variables, training=case.training, xla=options.xla)


def measure_peak_memory(implementation: str, case: Case, options: Options) -> float:
    """Returns the peak memory of two steps in MB, minus the memory resident before them.

    Call it once per process: memory that a process has freed may be reused without being counted.
    """
    # The first step of a process allocates memory that does not depend on the case.
    make_step(implementation, dataclasses.replace(case, length=8), options)()
    return memory.peak_increase(make_step(implementation, case, options))


def make_core(implementation: str, case: Case, options: Options):
    """Returns (a function that computes attention, its arguments, an empty list of variables).

    Arguments are q, k, v `[B, N, n, H]` and the tables.
    """
    rng, shape = np.random.default_rng(0), (case.batch_size, NUM_HEADS, case.length, KEY_DIM)
    qkv = [_draw(rng, shape) * KEY_DIM**-0.25 for _ in range(3)]
    tables = [_draw(rng, (2 * case.max_relative_position + 1, KEY_DIM)) * 0.1 for _ in range(2)]
    key_mask = _key_mask(case) if options.padding else None
    rate = options.dropout if case.training else 0.0
    if implementation == "matmul":
        return _matmul, qkv, []
    if implementation == "tensor2tensor":
        bias = _bias(case, key_mask)

        def attend_like_tensor2tensor(query, key, value, *tables):
            return dot_product_attention_relative(
                query, key, value, bias, *tables, case.max_relative_position, rate
            )

        return attend_like_tensor2tensor, [*qkv, *tables], []
    # Same value as RelativeMultiHeadAttention passes.
    rematerialize = False if case.training else None
    if implementation == "flash" or (options.flash_attention and implementation == "relative"):
        rematerialize = True
    settings = {"causal": case.causal, "key_mask": key_mask, "return_weights": False}
    settings |= {REMATERIALIZE: rematerialize}
    if rate:
        settings["dropout"] = AttentionDropout(rate, keras.random.SeedGenerator(1))
    function = lambda *tensors: attend(*tensors, **settings)[0]
    return function, qkv if implementation == "plain" else [*qkv, *tables], []


def make_layer(implementation: str, case: Case, options: Options):
    """Returns (an encoder layer or its attention as a function, its inputs, its variables)."""
    inputs = _draw(np.random.default_rng(0), (case.batch_size, case.length, WIDTH))
    attention = _make_attention_layer(implementation, case, options)
    norms = [keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
    inner = keras.layers.Dense(INTERMEDIATE_DIM, activation="relu")
    outer = keras.layers.Dense(WIDTH)
    mask = _key_mask(case)[:, None, :] if options.padding else None

    masks = {"attention_mask": mask, "use_causal_mask": case.causal}

    def attend_only(x):
        return attention(x, x, **masks, training=case.training)

    def call(x):
        x = x + attend_only(norms[0](x))
        return x + outer(inner(norms[1](x)))

    only = case.part == "attention"
    function = attend_only if only else call
    function(inputs[:, :8] if mask is None else inputs)
    layers = (attention,) if only else (attention, *norms, inner, outer)
    return function, [inputs], [w for layer in layers for w in layer.trainable_weights]


def _make_attention_layer(implementation, case, options):
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "dropout": options.dropout}
    k = case.max_relative_position
    if implementation == "keras":
        return keras.layers.MultiHeadAttention(**settings)
    if implementation == "tensor2tensor":
        return Tensor2TensorAttention(NUM_HEADS, KEY_DIM, k, options.dropout)
    if implementation in ("relative", "flash"):
        flash_attention = options.flash_attention or implementation == "flash" or None
        return RelativeMultiHeadAttention(
            max_relative_position=k, flash_attention=flash_attention, **settings
        )
    return RelativeMultiHeadAttention(
        max_relative_position=None, use_key_table=False, use_value_table=False, **settings
    )


def _matmul(query, key, value):
    """Computes the two matrix products of plain attention. Their gradients take four more."""
    return ops.matmul(ops.matmul(query, ops.swapaxes(key, -1, -2)), value)


def _draw(rng, shape):
    return ops.convert_to_tensor(rng.normal(size=shape), dtype="float32")


def _key_mask(case):
    """Returns bool `[B, n]`, False in the last quarter of every other sequence."""
    even = np.arange(case.batch_size) % 2 == 0
    lengths = np.where(even, case.length, max(1, 3 * case.length // 4))
    return ops.convert_to_tensor(np.arange(case.length) < lengths[:, None])


def _bias(case, key_mask):
    """Returns the additive mask of the reference, or None."""
    allowed = causal_mask(case.length, case.length) if case.causal else None
    if key_mask is not None:
        padding = key_padding_mask(key_mask)
        allowed = padding if allowed is None else ops.logical_and(allowed, padding)
    return None if allowed is None else ops.where(allowed, 0.0, -1e9)
