"""Compares the layer without tables with `keras.layers.MultiHeadAttention` on random arguments."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t2t_relpos.layers import RelativeMultiHeadAttention

IS_JAX = keras.backend.backend() == "jax"
# TensorFlow 2.21 computes the einsum of Keras's projections wrongly for a key_dim of 1.
CONSTRUCTOR = st.fixed_dictionaries(
    {"num_heads": st.sampled_from([1, 2, 3]), "key_dim": st.sampled_from([4, 5])},
    optional={
        # Keras's layer fails on JAX with a value_dim other than key_dim.
        **({} if IS_JAX else {"value_dim": st.sampled_from([2, 7])}),
        "use_bias": st.booleans(),
        "output_shape": st.sampled_from([5, 11]),
        "use_gate": st.booleans(),
        "sliding_window": st.sampled_from([1, 3, 20]),
        "bias_initializer": st.just("glorot_uniform"),
        "dropout": st.just(0.4),
    },
)
LENGTHS = st.tuples(st.sampled_from([1, 3, 7]), st.sampled_from([1, 3, 7, 11]))
MASKS = st.sets(st.sampled_from(["query_mask", "key_mask", "value_mask", "attention_mask"]))
OPTIONS = {
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
if IS_JAX:
    # JAX compiles every operation for every shape.
    OPTIONS["max_examples"] = 3
OFF = {"use_key_table": False, "use_value_table": False}

pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax over axis")


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


@settings(**OPTIONS)
@given(CONSTRUCTOR, LENGTHS, MASKS, st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_attention_without_tables_equals_keras(arguments, lengths, masks, causal, with_key, seed):
    length_q, length_k = lengths
    # Documented differences: causal masks and windows count from the last positions if T != S.
    if (causal or "sliding_window" in arguments) and length_q != length_k:
        length_k = length_q
    rng = np.random.default_rng(seed)
    theirs = keras.layers.MultiHeadAttention(**arguments, name="attention")
    ours = RelativeMultiHeadAttention(**OFF, **arguments, name="attention")
    query = rng.normal(size=(2, length_q, 6)).astype("float32")
    value = rng.normal(size=(2, length_k, 5)).astype("float32")
    inputs = [query, value]
    if with_key:
        inputs.append(rng.normal(size=(2, length_k, 4)).astype("float32"))
    shapes = {
        "query_mask": (2, length_q),
        "key_mask": (2, length_k),
        "value_mask": (2, length_k),
        "attention_mask": (2, length_q, length_k),
    }
    call = {name: rng.random(shapes[name]) < 0.7 for name in masks}
    call["use_causal_mask"] = causal
    theirs(*inputs), ours(*inputs)
    shapes = [[(v.path, v.shape) for v in layer.trainable_variables] for layer in (ours, theirs)]
    assert shapes[0] == shapes[1]
    ours.set_weights(theirs.get_weights())
    outputs, scores = ours(*inputs, return_attention_scores=True, **call)
    expected, their_scores = theirs(*inputs, return_attention_scores=True, **call)
    # Documented difference: a fully masked query gets zeros.
    attends = to_numpy(scores).sum(-1).min(1) > 0
    np.testing.assert_allclose(
        to_numpy(outputs)[attends], to_numpy(expected)[attends], atol=1e-4, rtol=1e-4
    )
    attends_by_head = np.broadcast_to(attends[:, None], to_numpy(scores).shape[:3])
    np.testing.assert_allclose(
        to_numpy(scores)[attends_by_head],
        to_numpy(their_scores)[attends_by_head],
        atol=1e-5,
        rtol=1e-4,
    )


@settings(**OPTIONS)
@given(
    LENGTHS,
    st.sampled_from([None, 1, 2, 4]),
    st.booleans(),
    st.sampled_from([None, 2, 3, 4]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_windows_and_masks_equal_a_mask_of_keras(
    lengths, window, causal, mask_rank, has_key_mask, seed
):
    length_q, length_k = lengths
    rng = np.random.default_rng(seed)
    theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    ours = RelativeMultiHeadAttention(num_heads=2, key_dim=4, sliding_window=window, **OFF)
    inputs = [rng.normal(size=(3, length, 6)).astype("float32") for length in lengths]
    theirs(*inputs), ours(*inputs)
    ours.set_weights(theirs.get_weights())

    # Distances of keys from queries, which are the last positions.
    distance = np.arange(length_k) - (np.arange(length_q)[:, None] + length_k - length_q)
    visible = np.ones((3, 2, length_q, length_k), bool)
    call = {"use_causal_mask": causal}
    if causal:
        visible &= distance <= 0
    if window is not None:
        visible &= np.abs(distance) < window
    if mask_rank is not None:
        axes = {2: (0, 0), 3: (slice(None), 0), 4: ()}[mask_rank]
        mask = call["attention_mask"] = (rng.random(visible.shape) < 0.8)[axes]
        visible &= mask[:, None] if mask_rank == 3 else mask
    if has_key_mask:
        call["key_mask"] = rng.random((3, length_k)) < 0.8
        visible &= call["key_mask"][:, None, None, :]

    expected = to_numpy(theirs(*inputs, attention_mask=visible))
    scored, _ = ours(*inputs, return_attention_scores=True, **call)
    # Documented difference: a fully masked query gets zeros.
    attends = visible.any(-1).all(1)
    for outputs in (ours(*inputs, **call), scored):
        np.testing.assert_allclose(
            to_numpy(outputs)[attends], expected[attends], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("settings", [{}, {"sliding_window": 3}], ids=str)
def test_dropout_drops_and_scales_weights(settings, rng):
    rate, length = 0.3, 20
    theirs = keras.layers.MultiHeadAttention(1, length, use_bias=False, dropout=rate, **settings)
    ours = RelativeMultiHeadAttention(
        1, length, use_bias=False, dropout=rate, seed=5, **settings, **OFF
    )
    query = rng.normal(size=(64, length, length)).astype("float32")
    theirs(query, query), ours(query, query)
    # With identities as values and as projections of values and outputs, outputs are weights.
    query_kernel, key_kernel, *_ = theirs.get_weights()
    identity = np.eye(length, dtype="float32")
    kernels = [query_kernel, key_kernel, identity[:, None], identity[None]]
    theirs.set_weights(kernels), ours.set_weights(kernels)
    arguments = query, np.broadcast_to(identity, query.shape)
    weights = to_numpy(ours(*arguments, training=False))
    np.testing.assert_allclose(weights, to_numpy(theirs(*arguments, training=False)), atol=1e-5)
    dropped = to_numpy(ours(*arguments, training=True))
    is_kept = dropped != 0
    np.testing.assert_allclose(dropped[is_kept], (weights / (1 - rate))[is_kept], rtol=1e-4)
    assert abs(is_kept[weights > 0].mean() - (1 - rate)) < 0.02
