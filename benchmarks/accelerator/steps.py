"""Builds the steps that the accelerator benchmark measures."""

import dataclasses

import keras
import numpy as np
from keras import ops

from benchmarks.attention.compiled_steps import compile_step
from benchmarks.attention.steps import KEY_DIM, NUM_HEADS, WIDTH
from t2t_relpos import RelativeMultiHeadAttention, Transformer
from t2t_relpos.attention import attend
from t2t_relpos.models import TransformerConfig

# `flash` is the backend's own fused or blockwise attention, which TensorFlow does not have.
IMPLEMENTATIONS = ("plain", "flash", "relative", "relative_linear")


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention computation to measure, forward and backward.

    Args:
        part: "core", attention of given queries, keys and values; or "layer", the multi-head
            attention layer.
        direction: "bidirectional" or "causal".
        dtype: dtype of the computation, "float32" or "bfloat16".
        length: number of positions.
        batch_size: number of sequences.
        max_relative_position: K.
    """

    part: str
    direction: str
    dtype: str
    length: int
    batch_size: int
    max_relative_position: int

    @property
    def causal(self):
        return self.direction == "causal"


def implementations() -> list[str]:
    """Returns the implementations of this backend."""
    has_flash = keras.backend.backend() != "tensorflow"
    return [name for name in IMPLEMENTATIONS if has_flash or name != "flash"]


def attention_step(implementation: str, case: Case, *, xla: bool):
    """Returns a function that computes attention and all gradients, and waits for them."""
    make = {"core": _core, "layer": _layer}[case.part]
    function, tensors, variables = make(implementation, case, np.random.default_rng(1))
    return compile_step(function, tensors, variables, training=True, xla=xla)


def training_step(position: str, dtype: str, preset: str, sizes: tuple[int, int, int]):
    """Returns a function that runs a training step of a Transformer, compiled with Keras defaults.

    Args:
        position: "relative", or "sinusoidal" for plain attention.
        dtype: dtype of the computation.
        preset: name of the architecture.
        sizes: vocabulary size, number of sentence pairs, and length of both sides.
    """
    vocab_size, batch_size, length = sizes
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    config = TransformerConfig.from_preset(preset, vocab_size=vocab_size, position=position)
    model = Transformer(config, dtype=policy)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    ids = np.random.default_rng(1).integers(2, vocab_size, (2, batch_size, length)).astype("int32")
    batch = {"inputs": ids[0], "targets": ids[1]}
    return lambda: model.train_on_batch(batch, batch["targets"])


def _core(implementation, case, rng):
    shape = (case.batch_size, NUM_HEADS, case.length, KEY_DIM)
    tensors = [_draw(rng, shape, case.dtype) / (KEY_DIM**0.5 if i == 0 else 1) for i in range(3)]
    if implementation == "flash":
        return lambda q, k, v: _flash(q, k, v, causal=case.causal), tensors, []
    options = {"causal": case.causal, "return_weights": False}
    options["rematerialize"] = implementation == "relative_linear"
    if implementation != "plain":
        rows = 2 * case.max_relative_position + 1
        tensors += [_draw(rng, (rows, KEY_DIM), case.dtype) for _ in range(2)]
    return lambda *inputs: attend(*inputs, **options)[0], tensors, []


def _layer(implementation, case, rng):
    policy = "float32" if case.dtype == "float32" else f"mixed_{case.dtype}"
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "dtype": policy}
    if implementation == "plain":
        layer = keras.layers.MultiHeadAttention(flash_attention=False, **settings)
    elif implementation == "flash":
        layer = _FlashAttention(use_key_table=False, use_value_table=False, **settings)
    else:
        layer = RelativeMultiHeadAttention(
            max_relative_position=case.max_relative_position,
            flash_attention=implementation == "relative_linear" or None,
            **settings,
        )
    x = _draw(rng, (case.batch_size, case.length, WIDTH), case.dtype)
    function = lambda x: layer(x, x, use_causal_mask=case.causal, training=True)
    function(x[:1, :8])
    return function, [x], layer.trainable_variables


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


def _draw(rng, shape, dtype):
    return ops.cast(ops.convert_to_tensor(rng.normal(size=shape), dtype="float32"), dtype)
