"""Builds the steps of attention that the benchmarks of attention and of accelerators measure."""

import dataclasses

import keras
import numpy as np
from keras import ops

from benchmarks.attention.compiled_steps import compile_step
from t2t_relpos import RelativeMultiHeadAttention
from t2t_relpos.attention import attend

NUM_HEADS, KEY_DIM, WIDTH, INTERMEDIATE_DIM = 8, 64, 512, 2048
MAX_RELATIVE_POSITION = 16


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention computation to measure.

    Args:
        part: "core", attention of given queries, keys and values; "layer", the multi-head attention
            layer; or "encoder", a pre-norm encoder layer.
        direction: "bidirectional" or "causal".
        dtype: "float32" or "bfloat16".
        length, batch_size: number of positions and of sequences.
        passes: "forward" (inference) or "both" (forward and backward).
    """

    part: str
    direction: str
    dtype: str
    length: int
    batch_size: int
    passes: str = "both"

    @property
    def causal(self):
        return self.direction == "causal"

    @property
    def training(self):
        return self.passes == "both"


def attention_step(implementation: str, case: Case, *, xla: bool):
    """Returns a function without arguments that runs one step and waits for its result.

    Args:
        implementation:
            "plain": attention without tables; in layers Keras's without its fused kernels.
            "keras": `keras.layers.MultiHeadAttention`, not in "core".
            "flash": attention without tables by the backend's own fused or blockwise function.
            "relative": relative attention with its default settings.
            "relative_linear": relative attention with memory linear in length.
            "tail_only": the fused kernel with one table row, so without a band, only in "core".
            "flex": `flex_attention` of PyTorch with the table of keys, only in "core".
            "row_NAME": the row NAME of the table of implementations, only in "core".
        case: the computation.
        xla: whether TensorFlow compiles with XLA.
    """
    make = {"core": _core, "layer": _layer, "encoder": _encoder}[case.part]
    function, tensors, variables = make(implementation, case, np.random.default_rng(1))
    return compile_step(function, tensors, variables, training=case.training, xla=xla)


def _core(implementation, case, rng):
    """Returns (a function, its arguments q, k, v `[B, N, n, H]` and tables, no variables)."""
    shape = (case.batch_size, NUM_HEADS, case.length, KEY_DIM)
    tensors = [_draw(rng, shape, case.dtype) / (KEY_DIM**0.5 if i == 0 else 1) for i in range(3)]
    if implementation == "flash":
        return lambda q, k, v: _flash(q, k, v, causal=case.causal), tensors, []
    if implementation != "plain":
        size = 1 if implementation == "tail_only" else 2 * MAX_RELATIVE_POSITION + 1
        tensors += [_draw(rng, (size, KEY_DIM), case.dtype) * 0.1 for _ in range(2)]
    if implementation == "flex":
        return _flex(tensors, causal=case.causal), tensors[:4], []
    options = {"causal": case.causal, "return_weights": False}
    if implementation == "tail_only" or implementation.startswith("row_"):
        row = "fused" if implementation == "tail_only" else implementation.removeprefix("row_")
        options["implementation"] = row
    # RelativeMultiHeadAttention passes the same values.
    default = False if case.training else None
    options["rematerialize"] = True if implementation == "relative_linear" else default
    return lambda *inputs: attend(*inputs, **options)[0], tensors, []


def _layer(implementation, case, rng):
    """Returns (a multi-head attention layer as a function, its inputs, its variables)."""
    policy = "float32" if case.dtype == "float32" else f"mixed_{case.dtype}"
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "dtype": policy}
    if implementation in ("plain", "keras"):
        fused = False if implementation == "plain" else None
        layer = keras.layers.MultiHeadAttention(flash_attention=fused, **settings)
    elif implementation == "flash":
        layer = _FlashAttention(use_key_table=False, use_value_table=False, **settings)
    else:
        layer = RelativeMultiHeadAttention(
            max_relative_position=MAX_RELATIVE_POSITION,
            flash_attention=implementation == "relative_linear" or None,
            **settings,
        )
    x = _draw(rng, (case.batch_size, case.length, WIDTH), case.dtype)
    function = lambda x: layer(x, x, use_causal_mask=case.causal, training=case.training)
    function(x[:1, :8])
    return function, [x], layer.trainable_variables


def _encoder(implementation, case, rng):
    """Returns (a pre-norm encoder layer as a function, its inputs, its variables)."""
    attention, inputs, variables = _layer(implementation, case, rng)
    norms = [keras.layers.LayerNormalization(epsilon=1e-6, dtype=case.dtype) for _ in range(2)]
    inner = keras.layers.Dense(INTERMEDIATE_DIM, activation="relu", dtype=case.dtype)
    outer = keras.layers.Dense(WIDTH, dtype=case.dtype)

    def call(x):
        x = x + attention(norms[0](x))
        return x + outer(inner(norms[1](x)))

    call(inputs[0][:1, :8])
    others = [w for layer in (*norms, inner, outer) for w in layer.trainable_variables]
    return call, inputs, [*variables, *others]


class _FlashAttention(RelativeMultiHeadAttention):
    """Multi-head attention without relative positions that uses the backend's flash attention."""

    def attend(self, query, key, value, *, causal, **options):
        return _flash(query, key, value, causal=causal), None


def _flash(query, key, value, *, causal):
    """Returns the outputs `[B, N, T, H]` of the backend's own attention function."""
    if keras.backend.backend() == "torch":
        from torch.nn.functional import scaled_dot_product_attention

        return scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)
    import jax

    # cuDNN supports 16-bit types only.
    fused = jax.default_backend() == "gpu" and query.dtype == "bfloat16"
    heads_last = [ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)]
    outputs = jax.nn.dot_product_attention(
        *heads_last, is_causal=causal, scale=1.0, implementation="cudnn" if fused else None
    )
    return ops.transpose(outputs, (0, 2, 1, 3))


def _flex(tensors, *, causal):
    """Returns relative attention without a^V by `flex_attention`, which has no place for it."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, k = tensors[0].shape[2], MAX_RELATIVE_POSITION
    compiled, mask = torch.compile(flex_attention), None
    if causal:
        mask = create_block_mask(
            lambda b, n, i, j: i >= j, None, None, length, length, device=tensors[0].device
        )

    def attention(query, key, value, key_table):
        products = query @ key_table.T

        def add_product(score, b, n, i, j):
            return score + products[b, n, i, torch.clamp(j - i, -k, k) + k]

        return compiled(query, key, value, score_mod=add_product, block_mask=mask, scale=1.0)

    return attention


def _draw(rng, shape, dtype):
    return ops.cast(ops.convert_to_tensor(rng.normal(size=shape), dtype="float32"), dtype)
