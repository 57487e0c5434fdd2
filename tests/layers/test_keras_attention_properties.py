"""Compares the layer without tables with `keras.layers.MultiHeadAttention` on random arguments."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t2t_relpos.layers import RelativeMultiHeadAttention

if keras.backend.backend() == "jax":
    pytest.skip("Keras's layer fails on JAX if value_dim is set.", allow_module_level=True)

# TensorFlow 2.21 computes the einsum of Keras's projections wrongly for a key_dim of 1.
CONSTRUCTOR = st.fixed_dictionaries(
    {"num_heads": st.sampled_from([1, 2, 3]), "key_dim": st.sampled_from([4, 5])},
    optional={
        "value_dim": st.sampled_from([2, 7]),
        "use_bias": st.booleans(),
        "output_shape": st.sampled_from([5, 11]),
        "use_gate": st.booleans(),
        "sliding_window": st.sampled_from([1, 3, 20]),
        "bias_initializer": st.just("glorot_uniform"),
    },
)
LENGTHS = st.tuples(st.sampled_from([1, 3, 7]), st.sampled_from([1, 3, 7, 11]))
MASKS = st.sets(st.sampled_from(["query_mask", "key_mask", "value_mask", "attention_mask"]))


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(CONSTRUCTOR, LENGTHS, MASKS, st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_attention_without_tables_equals_keras(arguments, lengths, masks, causal, with_key, seed):
    length_q, length_k = lengths
    # Documented differences: causal masks and windows count from the last positions if T != S.
    if (causal or "sliding_window" in arguments) and length_q != length_k:
        length_k = length_q
    rng = np.random.default_rng(seed)
    theirs = keras.layers.MultiHeadAttention(**arguments)
    ours = RelativeMultiHeadAttention(use_key_table=False, use_value_table=False, **arguments)
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
    ours.set_weights(theirs.get_weights())
    outputs, scores = ours(*inputs, return_attention_scores=True, **call)
    expected, their_scores = theirs(*inputs, return_attention_scores=True, **call)
    # Documented difference: a fully masked query gets zeros.
    attends = np.asarray(scores).sum(-1).min(1) > 0
    np.testing.assert_allclose(
        np.asarray(outputs)[attends], np.asarray(expected)[attends], atol=1e-4, rtol=1e-4
    )
    attends_by_head = np.broadcast_to(attends[:, None], np.asarray(scores).shape[:3])
    np.testing.assert_allclose(
        np.asarray(scores)[attends_by_head],
        np.asarray(their_scores)[attends_by_head],
        atol=1e-5,
        rtol=1e-4,
    )
