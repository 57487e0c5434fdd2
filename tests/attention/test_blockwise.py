"""Tests that only apply to `unrolled_blocks` and `scanned_blocks`.

test_implementations.py tests all implementations.
"""

import gc
import math
import re
import weakref

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from gradients import output_and_gradients
from keras import ops
from seeds import FixedSeed

from t2t_relpos.attention import attend
from t2t_relpos.attention.dropout import AttentionDropout

BACKEND = keras.backend.backend()
NAMES = ("unrolled_blocks", "scanned_blocks")


@pytest.fixture(params=NAMES)
def implementation(request, small_block_implementations):
    return small_block_implementations[request.param]


def test_traced_query_offset_equals_an_int(implementation, draw, assert_close):
    arrays = draw(11, 23, 2)
    for causal in (False, True):
        for offset in (5, -40, 40):
            expected = output_and_gradients(
                lambda xs: attend(*xs, causal=causal, query_offset=offset)[0], arrays
            )
            found = output_and_gradients(
                lambda xs: attend(
                    *xs,
                    causal=causal,
                    query_offset=ops.convert_to_tensor(offset, dtype="int32"),
                    implementation=implementation,
                    return_weights=False,
                )[0],
                arrays,
            )
            assert_close(found, expected)


def test_unrolled_and_scanned_blocks_drop_the_same_weights(
    small_block_implementations, draw, precision
):
    # With a multiple of the block size, both implementations have the same blocks.
    arrays = draw(25, 25, 2)
    found = []
    for name in NAMES:
        dropout = AttentionDropout(0.4, FixedSeed(7))
        found.append(
            output_and_gradients(
                lambda xs, dropout=dropout, name=name: attend(
                    *xs,
                    dropout=dropout,
                    implementation=small_block_implementations[name],
                    return_weights=False,
                )[0],
                arrays,
            )
        )
    plain = ops.convert_to_numpy(attend(*arrays)[0])
    assert np.abs(found[0][0] - plain).max() > 0.1
    unrolled, scanned = ([outputs, *gradients] for outputs, gradients in found)
    assert_all_close(scanned, unrolled, rtol=0, atol=20 * precision.atol)


def shapes_of(length_q, length_k):
    """Returns the shapes of query, key, value and two tables."""
    return [(1, 2, length_q, 16), *[(1, 2, length_k, 16)] * 2, *[(9, 16)] * 2]


def compile_on_jax(lengths, name, causal, **options):
    """Returns the compiled function that computes a loss and its gradients."""
    import jax

    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes_of(*lengths)]

    def loss(*xs):
        outputs, _ = attend(
            *xs, causal=causal, implementation=name, return_weights=False, **options
        )
        return (outputs**2).sum()

    return jax.jit(jax.value_and_grad(loss, range(5))).lower(*arrays).compile()


def compiled_code(lengths, name, causal, **options):
    """Returns the optimized HLO of outputs and gradients as text."""
    if BACKEND == "jax":
        return compile_on_jax(lengths, name, causal, **options).as_text()
    import tensorflow as tf

    arrays = [tf.ones(shape) for shape in shapes_of(*lengths)]

    @tf.function(jit_compile=True)
    def gradients(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            outputs, _ = attend(
                *xs, causal=causal, implementation=name, return_weights=False, **options
            )
        return outputs, tape.gradient(outputs, xs)

    return gradients.experimental_get_compiler_ir(*arrays)(stage="optimized_hlo")


@pytest.mark.skipif(BACKEND == "torch", reason="XLA requires TensorFlow or JAX")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "lengths, masked", [((512, 512), False), ((512, 512), True), ((384, 512), False)]
)
@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_has_no_gather_and_no_embedding_per_pair(name, lengths, masked, causal):
    options = {"key_mask": np.arange(lengths[1])[None] < 300} if masked else {}
    text = compiled_code(lengths, name, causal, **options)
    instructions = set(re.findall(r"= \S+ ([a-z-]+)\(", text))
    assert "dot" in instructions or "custom-call" in instructions
    assert not {"gather", "scatter"} & instructions
    shapes = re.findall(r"[a-z]+\d+\[([\d,]+)\]", text)
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    # The weights of two heads have 2·T·S entries. An embedding of each pair has 16·T·S.
    assert largest <= (2 if name == "unrolled_blocks" else 1) * math.prod(lengths)


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX reports the memory of compiled code")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_memory_of_scanned_blocks_is_linear_in_length(masked, causal):
    temporary_bytes = []
    for length in (2048, 8192):
        options = {"key_mask": np.ones((1, length), bool)} if masked else {}
        compiled = compile_on_jax((length, length), "scanned_blocks", causal, **options)
        temporary_bytes.append(compiled.memory_analysis().temp_size_in_bytes)
    assert temporary_bytes[1] < 4.4 * temporary_bytes[0]


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch frees memory by counting references")
def test_outputs_are_freed_without_garbage_collection(implementation, draw):
    import torch

    arrays = [torch.tensor(x, requires_grad=True) for x in draw(23, 23, 2)]
    gc.disable()
    try:
        outputs, _ = attend(*arrays, implementation=implementation, return_weights=False)
        reference = weakref.ref(outputs)
        del outputs
        assert reference() is None
    finally:
        gc.enable()
