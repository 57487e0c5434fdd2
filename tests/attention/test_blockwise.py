"""Tests that only apply to `blocks`.

test_implementations.py tests all implementations.
"""

import dataclasses
import math
import re

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from gradients import gradients_of_squared_gradients, output_and_gradients
from keras import ops
from seeds import FixedSeed

from t2t_relpos.attention import attend, blockwise
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.limits import Sizes
from t2t_relpos.attention.masks import masked_softmax
from t2t_relpos.layers import RelativeMultiHeadAttention

BACKEND = keras.backend.backend()
NAMES = ("blocks", "blocks in a loop")
TENSORS = ("query", "key", "value", "key_table", "value_table")


@pytest.fixture(params=NAMES)
def implementation(request, small_block_implementations):
    return small_block_implementations[request.param]


@pytest.mark.parametrize("causal, offset", [(False, 5), (False, 40), (True, 5), (True, -40)])
def test_traced_query_offset_equals_an_int(causal, offset, implementation, draw, assert_close):
    arrays, options = draw(11, 23, 2), {"causal": causal, "return_weights": False}

    def compute(xs, **others):
        return attend(*xs, **options, **others)[0]

    traced = {"query_offset": ops.convert_to_tensor(offset, dtype="int32")}
    found = output_and_gradients(
        lambda xs: compute(xs, **traced, implementation=implementation), arrays
    )
    assert_close(found, output_and_gradients(lambda xs: compute(xs, query_offset=offset), arrays))


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_far_after_all_keys_have_the_first_row_of_a_long_table(
    causal, implementation, draw, assert_close
):
    arrays, options = draw(75, 7, 23), {"query_offset": 0, "causal": causal}

    def compute(xs, **others):
        results = attend(*xs, **options, **others, return_weights=False, return_log_sums=True)
        return ops.concatenate([results[0], results[2][..., None]], axis=-1)

    found = output_and_gradients(lambda xs: compute(xs, implementation=implementation), arrays)
    expected = output_and_gradients(lambda xs: compute(xs, implementation="by_id"), arrays)
    assert_close(found, expected)


def test_mask_of_queries_with_a_window(implementation, draw, assert_close):
    arrays = draw(23, 23, 2)
    options = {"mask": np.arange(23)[:, None] % 5 > 0, "sliding_window": 4}

    def compute(xs, name):
        return attend(*xs, implementation=name, return_weights=False, **options)[0]

    found = output_and_gradients(lambda xs: compute(xs, implementation), arrays)
    assert_close(found, output_and_gradients(lambda xs: compute(xs, "by_id"), arrays))


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="a mode of JAX")
def test_64_bit_mode_of_jax(draw, rng, small_block_implementations):
    """Loops then count in int64, and `dynamic_slice` refuses indices of several dtypes."""
    import jax

    with jax.enable_x64(True):
        x = rng.normal(size=(2, 3, 5))
        sums = np.exp(x).sum(-1, keepdims=True)
        np.testing.assert_allclose(masked_softmax(ops.convert_to_tensor(x)), np.exp(x) / sums)
        arrays = draw(31, 31, 2)
        scanned = small_block_implementations["blocks in a loop"]
        options = {"return_weights": False, "query_offset": jax.numpy.asarray(0)}
        outputs, _ = attend(*arrays, **options, implementation=scanned)
        np.testing.assert_allclose(outputs, attend(*arrays)[0], atol=1e-5)
        layer = RelativeMultiHeadAttention(2, 3, max_relative_position=2)
        x = rng.normal(size=(2, 1, 6)).astype("float32")
        layer.build(x.shape, x.shape)
        cache = ops.zeros((2, 2, 7, 2, 3), dtype="float32")
        step = jax.jit(lambda index: layer.attend_with_cache(x, x, cache, index)[0])
        assert np.isfinite(step(np.int64(3))).all()


def test_saved_and_rematerialized_weights_are_dropped_alike(
    small_block_implementations, draw, precision
):
    # With a multiple of the block size, both implementations have the same blocks.
    arrays = draw(21, 21, 2)
    dropout = AttentionDropout(0.4, FixedSeed(7))
    options = {"dropout": dropout, "return_weights": False}
    found = [
        output_and_gradients(
            lambda xs: attend(*xs, **options, implementation=small_block_implementations[name])[0],
            arrays,
        )
        for name in NAMES
    ]
    plain = ops.convert_to_numpy(attend(*arrays)[0])
    assert np.abs(found[0][0] - plain).max() > 0.1
    unrolled, scanned = ([outputs, *gradients] for outputs, gradients in found)
    assert_all_close(scanned, unrolled, rtol=0, atol=20 * precision.atol)


def shapes_of(length_q, length_k):
    """Returns the shapes of query, key, value and two tables."""
    return [(1, 2, length_q, 16), *[(1, 2, length_k, 16)] * 2, *[(9, 16)] * 2]


def compile_on_jax(lengths, **options):
    """Returns the compiled function that computes a loss and its gradients."""
    import jax

    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes_of(*lengths)]

    def loss(*xs):
        return (attend(*xs, return_weights=False, **options)[0] ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, range(5))).lower(*arrays).compile()


def compiled_code(lengths, **options):
    """Returns the optimized HLO of outputs and gradients as text."""
    if BACKEND == "jax":
        return compile_on_jax(lengths, **options).as_text()
    import tensorflow as tf

    arrays = [tf.ones(shape) for shape in shapes_of(*lengths)]

    @tf.function(jit_compile=True)
    def gradients(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            outputs, _ = attend(*xs, return_weights=False, **options)
        return outputs, tape.gradient(outputs, xs)

    return gradients.experimental_get_compiler_ir(*arrays)(stage="optimized_hlo")


@pytest.mark.skipif(BACKEND == "torch", reason="XLA requires TensorFlow or JAX")
@pytest.mark.parametrize(
    "lengths, masked, causal", [((48, 48), False, False), ((40, 48), True, True)]
)
@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_has_no_gather_and_no_embedding_per_pair(
    name, lengths, masked, causal, small_block_implementations
):
    # Three blocks, as few as have a first, an inner and a last one.
    sizes = dict.fromkeys(("cpu", "gpu", "tpu"), Sizes(16, causal_segments=2))
    options = {"key_mask": np.arange(lengths[1])[None] < 30} if masked else {}
    implementation = dataclasses.replace(small_block_implementations[name], sizes=sizes)
    text = compiled_code(lengths, implementation=implementation, causal=causal, **options)
    instructions = set(re.findall(r"= \S+ ([a-z-]+)\(", text))
    assert "dot" in instructions or "custom-call" in instructions
    assert not {"gather", "scatter"} & instructions
    shapes = re.findall(r"[a-z]+\d+\[([\d,]+)\]", text)
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    # The weights of two heads have 2·T·S entries. An embedding of each pair has 16·T·S.
    assert largest <= (2 if name == "blocks" else 1) * math.prod(lengths)


def memory_on_jax(length, **options):
    """Returns the bytes of the temporary arrays of the compiled function."""
    compiled = compile_on_jax((length, length), **options)
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX reports the memory of compiled code")
@pytest.mark.parametrize("causal", [False, True])
def test_memory_of_blocks_in_a_loop(causal):
    """It is linear in length, also with a mask, and less with a sliding window."""
    options = {"implementation": "blocks", "causal": causal}
    short, long = (
        memory_on_jax(n, key_mask=np.ones((1, n), bool), **options) for n in (2048, 8192)
    )
    assert long < 4.4 * short
    assert memory_on_jax(2048, sliding_window=64, **options) <= short


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch repeats the forward pass if necessary")
def test_first_derivatives_do_not_repeat_the_forward_pass(implementation, draw, monkeypatch):
    runs, forward = [], blockwise.forward
    monkeypatch.setattr(
        blockwise, "forward", lambda *args, **kwargs: (runs.append(0), forward(*args, **kwargs))[1]
    )
    arrays = dict(zip(TENSORS, draw(19, 19, 2), strict=True))

    def outputs(xs):
        return attend(**xs, implementation=implementation, return_weights=False)[0]

    output_and_gradients(outputs, arrays)
    assert len(runs) == 1
    gradients_of_squared_gradients(lambda xs: ops.sum(outputs(xs) ** 2), arrays)
    assert len(runs) == 3
