"""Compares outputs and gradients of every implementation with the port of tensor2tensor."""

import re

import keras
import numpy as np
import pytest
from gradients import output_and_gradients
from keras import ops
from seeds import FixedSeed

from t2t_relpos.attention import attend, causal_mask, dispatch
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.reference import dot_product_attention_relative
from t2t_relpos.attention.request import Request

BACKEND = keras.backend.backend()
NAMES = [each.name for each in dispatch.TABLE if each.name != "without_tables"]
# (T, S, K). The cases include length 1, T < 2K + 1, T >> 2K + 1, and T != S.
LENGTHS = [(1, 1, 2), (3, 3, 5), (7, 7, 3), (37, 37, 2), (5, 11, 3), (1, 13, 3), (29, 31, 2)]


@pytest.fixture(params=NAMES)
def implementation(request, small_block_implementations):
    implementation = small_block_implementations[request.param]
    if dispatch.TENSORFLOW_ON_CPU in implementation.requirements:
        if not dispatch.TENSORFLOW_ON_CPU.holds(Request(23, 23, 2)):
            pytest.skip(f"{implementation.name} requires {dispatch.TENSORFLOW_ON_CPU.text}")
    return implementation


def run(implementation, arrays, **options):
    """Returns the outputs of an implementation. Skips the test if it does not support the call."""
    lengths = arrays[0].shape[2], arrays[1].shape[2]
    k = (arrays[3].shape[-2] - 1) // 2
    request = Request(*lengths, k, causal=options.get("causal", False))
    unmet = implementation.unmet_condition(request, ignore_preferences=True)
    if unmet is not None:
        pytest.skip(f"{implementation.name} requires {unmet.text}")
    return attend(*arrays, implementation=implementation, return_weights=False, **options)[0]


def reference(arrays, bias=None):
    """Returns the outputs of the port."""
    query, key, value, key_table, value_table = arrays
    k = (key_table.shape[0] - 1) // 2
    return dot_product_attention_relative(
        query, key, value, bias, key_table, value_table, k, allow_memory=True
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_outputs_and_gradients_equal_the_port(
    lengths, causal, implementation, draw, rng, assert_close
):
    arrays = draw(*lengths)
    cotangent = rng.normal(size=(2, 3, lengths[0], 5))
    bias = np.where(causal_mask(*lengths[:2]), 0.0, -1e9) if causal else None
    found = output_and_gradients(
        lambda xs: run(implementation, xs, causal=causal), arrays, cotangent
    )
    expected = output_and_gradients(lambda xs: reference(xs, bias), arrays, cotangent)
    assert_close(found, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask_arguments", ["key_mask", "mask", "mask of rank 3", "both"])
@pytest.mark.parametrize("lengths", [(23, 23, 2), (19, 29, 3), (3, 5, 5)])
def test_masks_equal_a_bias_of_the_port(
    lengths, mask_arguments, causal, implementation, draw, rng, assert_close
):
    arrays = draw(*lengths)
    masks = {}
    if mask_arguments in ("key_mask", "both"):
        masks["key_mask"] = rng.random((2, lengths[1])) < 0.6
    if mask_arguments != "key_mask":
        masks["mask"] = rng.random((2, 1, *lengths[:2])) < 0.5
        masks["mask"][0, :, 1] = False  # a fully masked query
    valid = np.ones((2, 1, *lengths[:2]), bool)
    valid &= masks.get("key_mask", np.ones((2, lengths[1]), bool))[:, None, None]
    valid &= masks.get("mask", True)
    if causal:
        valid &= ops.convert_to_numpy(causal_mask(*lengths[:2]))
    if mask_arguments == "mask of rank 3":
        masks["mask"] = masks["mask"][:, 0]
    has_valid_key = valid.any(-1)[..., None]
    # For a fully masked query, the port averages all values, but `attend` returns zeros.
    cotangent = rng.normal(size=(2, 3, lengths[0], 5)) * has_valid_key
    outputs, gradients = output_and_gradients(
        lambda xs: run(implementation, xs, causal=causal, **masks), arrays, cotangent
    )
    assert not (outputs * ~has_valid_key).any()
    bias = np.where(valid, 0.0, -1e9)
    expected = output_and_gradients(lambda xs: reference(xs, bias), arrays, cotangent)
    assert_close((outputs, gradients), (expected[0] * has_valid_key, expected[1]))


def test_fully_masked_queries_have_zero_gradients(implementation, draw):
    mask = np.zeros((23, 23), bool)
    _, gradients = output_and_gradients(
        lambda xs: run(implementation, xs, mask=mask), draw(23, 23, 2)
    )
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("causal", [False, True])
def test_each_head_uses_its_own_table(causal, implementation, draw, rng, assert_close):
    arrays = draw(23, 23, 2, heads=3)
    cotangent = rng.normal(size=(2, 3, 23, 5))
    found = output_and_gradients(
        lambda xs: run(implementation, xs, causal=causal), arrays, cotangent
    )
    bias = np.where(causal_mask(23, 23), 0.0, -1e9) if causal else None
    for head in range(3):
        one = slice(head, head + 1)
        of_head = [x[:, one] for x in arrays[:3]] + [x[head] for x in arrays[3:]]
        expected = output_and_gradients(lambda xs: reference(xs, bias), of_head, cotangent[:, one])
        gradients = [x[:, one] for x in found[1][:3]] + [x[head] for x in found[1][3:]]
        assert_close((found[0][:, one], gradients), expected)


@pytest.mark.parametrize("missing", [(3,), (4,), (3, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_missing_table_equals_a_table_of_zeros(causal, missing, implementation, draw, assert_close):
    max_relative_position = None if missing == (3, 4) else 2
    request = Request(23, 23, max_relative_position, causal=causal)
    unmet = implementation.unmet_condition(request, ignore_preferences=True)
    if unmet is not None:
        pytest.skip(f"{implementation.name} requires {unmet.text}")
    arrays = draw(23, 23, 2)
    for index in missing:
        arrays[index] = np.zeros_like(arrays[index])
    outputs, gradients = output_and_gradients(
        lambda xs: run(implementation, xs, causal=causal), arrays
    )
    remaining = [i for i in range(5) if i not in missing]

    def without_tables(xs):
        given = dict(zip(remaining, xs, strict=True))
        options = {"implementation": implementation, "return_weights": False, "causal": causal}
        return attend(*(given.get(i) for i in range(5)), **options)[0]

    found = output_and_gradients(without_tables, [arrays[i] for i in remaining])
    assert_close(found, (outputs, [gradients[i] for i in remaining]))


@pytest.mark.parametrize("lengths, offset", [((11, 23, 2), 5), ((23, 11, 3), 0), ((5, 7, 2), -9)])
@pytest.mark.parametrize("causal", [False, True])
def test_query_offset_equals_numpy(
    causal, lengths, offset, implementation, draw, rng, assert_close
):
    if implementation.name == "full_matrix":
        pytest.skip("full_matrix requires query offset S - T")
    arrays = draw(*lengths)
    options = {"query_offset": offset, "causal": causal}
    cotangent = rng.normal(size=(2, 3, lengths[0], 5))
    found = output_and_gradients(lambda xs: run(implementation, xs, **options), arrays, cotangent)
    k = lengths[2]
    distance = np.arange(lengths[1]) - (np.arange(lengths[0])[:, None] + offset)
    ids = np.clip(distance, -k, k) + k
    key, value = (np.take(table, ids, 0) for table in arrays[3:])
    scores = np.einsum("bnth,bnsh->bnts", arrays[0], arrays[1])
    scores = scores + np.einsum("bnth,tsh->bnts", arrays[0], key)
    valid = (distance <= 0) | (not causal)
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * valid
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    expected = weights @ arrays[2] + np.einsum("bnts,tsh->bnth", weights, value)
    _, gradients = output_and_gradients(
        lambda xs: attend(*xs, implementation="rows", **options)[0], arrays, cotangent
    )
    assert_close(found, (expected, gradients))


def test_max_relative_position_0_adds_one_vector_to_all_outputs(implementation, draw, precision):
    if implementation.name == "full_matrix":
        pytest.skip("full_matrix requires K >= 1")
    *qkv, key_table, value_table = draw(7, 7, 0)
    outputs = attend(
        *qkv, key_table, value_table, implementation=implementation, return_weights=False
    )[0]
    plain = ops.convert_to_numpy(attend(*qkv)[0])
    np.testing.assert_allclose(outputs, plain + value_table[0], rtol=0, atol=precision.atol)


def test_empty_batch_has_zero_gradients(implementation, draw):
    arrays = [x[:0] if x.ndim == 4 else x for x in draw(23, 23, 2)]
    outputs, gradients = output_and_gradients(lambda xs: run(implementation, xs), arrays)
    assert outputs.shape == (0, 3, 23, 5)
    assert [g.shape for g in gradients] == [x.shape for x in arrays]
    assert not any(g.any() for g in gradients[3:])


# Tolerances are relative to the largest entry. Expected results are computed from the same rounded
# inputs in the widest dtype.
@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 6e-2)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_error_in_low_precision(causal, dtype, tolerance, implementation, draw, precision):
    rounded = [
        ops.convert_to_numpy(ops.cast(ops.cast(x, dtype), precision.dtype)) for x in draw(37, 37, 3)
    ]

    def in_dtype(xs):
        outputs = run(implementation, [ops.cast(x, dtype) for x in xs], causal=causal)
        assert keras.backend.standardize_dtype(outputs.dtype) == dtype
        return ops.cast(outputs, precision.dtype)

    found = output_and_gradients(in_dtype, rounded)
    exact = output_and_gradients(lambda xs: run(implementation, xs, causal=causal), rounded)
    for actual, expected in zip([found[0], *found[1]], [exact[0], *exact[1]], strict=True):
        assert np.abs(actual - expected).max() < tolerance * np.abs(expected).max()


class TestDropout:
    @pytest.mark.parametrize("causal", [False, True])
    def test_gradient_uses_the_dropout_mask_of_the_outputs(
        self, causal, implementation, draw, rng, precision
    ):
        arrays, directions = draw(19, 23, 2), draw(19, 23, 2)
        options = {"dropout": AttentionDropout(0.4, FixedSeed(7)), "causal": causal}
        cotangent = rng.normal(size=(2, 3, 19, 5))
        _, gradients = output_and_gradients(
            lambda xs: run(implementation, xs, **options), arrays, cotangent
        )
        products = [g * d for g, d in zip(gradients, directions, strict=True)]
        scale = sum(np.sum(np.abs(x)) for x in products)

        def loss(xs):
            xs = [x.astype(precision.dtype) for x in xs]
            return np.sum(cotangent * ops.convert_to_numpy(run(implementation, xs, **options)))

        step, tolerance = (1e-6, 1e-7) if precision.dtype == "float64" else (3e-3, 3e-4)
        losses = [
            loss([x + sign * step * d for x, d in zip(arrays, directions, strict=True)])
            for sign in (-1, 1)
        ]
        found = (losses[1] - losses[0]) / (2 * step)
        assert abs(found - sum(map(np.sum, products))) < tolerance * scale

    def test_dropout_keeps_and_scales_weights_by_its_rate(self, implementation, draw):
        query, key, _, key_table, _ = draw(61, 67, 3)
        value = np.broadcast_to(np.eye(67), (2, 3, 67, 67))  # outputs equal the weights
        arrays = [query, key, value.astype(query.dtype), key_table, np.zeros((7, 67), query.dtype)]
        dropped = run(implementation, arrays, dropout=AttentionDropout(0.3, FixedSeed(7)))
        dropped = ops.convert_to_numpy(dropped)
        weights = ops.convert_to_numpy(attend(query, key, value, key_table)[1])
        kept = dropped != 0
        np.testing.assert_allclose(dropped[kept], weights[kept] / 0.7, rtol=1e-4)
        assert abs(kept.mean() - 0.7) < 0.01
        # Blocks, heads and batch entries have different masks.
        assert (kept[:, :, 5:] != kept[:, :, :-5]).mean() > 0.3
        assert (kept[0] != kept[1]).mean() > 0.3 and (kept[:, 0] != kept[:, 1]).mean() > 0.3

    def test_each_call_draws_another_mask(self, implementation, draw):
        dropout = AttentionDropout(0.5, keras.random.SeedGenerator(3))
        arrays = draw(23, 23, 2)
        one, other = (
            ops.convert_to_numpy(run(implementation, arrays, dropout=dropout)) for _ in range(2)
        )
        assert np.abs(one - other).max() > 0.1


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="oneDNN requires TensorFlow")
@pytest.mark.parametrize("causal", [False, True])
def test_one_head_in_float32_has_no_memory_errors(causal, implementation, draw, assert_close):
    """oneDNN corrupts memory when it multiplies one head with a table (tensorflow#117700)."""
    arrays = [x[:, :1] if x.ndim == 4 else x for x in draw(101, 101, 3)]
    exact = output_and_gradients(lambda xs: run(implementation, xs, causal=causal), arrays)
    single = [x.astype("float32") for x in arrays]
    found = output_and_gradients(lambda xs: run(implementation, xs, causal=causal), single)
    for actual, expected in zip([found[0], *found[1]], [exact[0], *exact[1]], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def second_derivatives(loss, arrays):
    """Returns the gradients of the sum of squares of the loss's gradients."""
    if BACKEND == "jax":
        import jax

        argnums = tuple(range(len(arrays)))
        first = jax.grad(loss, argnums)
        second = jax.grad(lambda *xs: sum((g**2).sum() for g in first(*xs)), argnums)
        return jax.jit(second)(*map(jax.numpy.asarray, arrays))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        arrays = list(map(tf.constant, arrays))
        with tf.GradientTape() as outer:
            outer.watch(arrays)
            with tf.GradientTape() as inner:
                inner.watch(arrays)
                value = loss(*arrays)
            total = tf.add_n([tf.reduce_sum(g**2) for g in inner.gradient(value, arrays)])
        return outer.gradient(total, arrays)
    import torch

    arrays = [torch.tensor(x, requires_grad=True) for x in arrays]
    first = torch.autograd.grad(loss(*arrays), arrays, create_graph=True)
    return torch.autograd.grad(sum((g**2).sum() for g in first), arrays)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives_equal_autodiff_or_raise(
    causal, masked, implementation, draw, precision
):
    """`scanned_blocks` may raise: TensorFlow has no gradient of the slice update in its loop."""
    arrays = draw(23, 23, 3)
    key_mask = np.arange(23) < np.array([[23], [13]]) if masked else None

    def derivatives_of(selected):
        def loss(*xs):
            options = {"implementation": selected, "return_weights": False}
            outputs, _ = attend(*xs, causal=causal, key_mask=key_mask, **options)
            return ops.sum(outputs**2)

        return second_derivatives(loss, arrays)

    if implementation.name == "scanned_blocks" and BACKEND != "torch":
        try:
            found = derivatives_of(implementation)
        except (LookupError, ValueError) as error:
            assert re.search("(?i)gradient|differentiat", str(error))
            return
    found = derivatives_of(implementation)
    tolerance = 1e-9 if precision.dtype == "float64" else 1e-4
    for actual, expected in zip(found, derivatives_of("by_id"), strict=True):
        actual, expected = map(ops.convert_to_numpy, (actual, expected))
        atol = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
