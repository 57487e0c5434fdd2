"""Tests the sizes of all tensors that RelationMultiHeadAttention creates, on every backend.

The tensors of the forward and the backward pass are counted.
"""

import pytest
from gradients import with_values
from keras import ops
from sizes import largest_tensor

from t2t_relpos.layers import RelationMultiHeadAttention

BATCH, HEADS, LENGTH_Q, LENGTH_K, DEPTH, LABELS = 2, 3, 37, 41, 19, 23
SCORES = BATCH * HEADS * LENGTH_Q * LENGTH_K
PRODUCTS_BY_LABEL = BATCH * HEADS * LENGTH_Q * (LABELS + 1)  # one for "no edge"


@pytest.fixture
def largest_of_layer(rng):
    def measure(num_relations=LABELS, **settings):
        layer = RelationMultiHeadAttention(HEADS, DEPTH, num_relations, **settings)
        x, y = (rng.normal(size=(BATCH, n, 5)).astype("float32") for n in (LENGTH_Q, LENGTH_K))
        channels = num_relations if isinstance(num_relations, tuple) else (num_relations,)
        labels = [
            rng.integers(-1, n, (BATCH, LENGTH_Q, LENGTH_K)).astype("int32") for n in channels
        ]
        layer(x, y, relations=labels)
        variables = layer.trainable_variables

        def call(inputs, labels):
            x, y, *values = inputs
            return with_values(variables, values, lambda: layer(x, y, relations=labels))

        return largest_tensor(call, [x, y, *(ops.convert_to_numpy(v) for v in variables)], labels)

    return measure


def test_sizes_distinguish_edge_vectors_from_scores():
    assert LENGTH_Q * LENGTH_K * min(DEPTH, LABELS) > max(SCORES, PRODUCTS_BY_LABEL)


@pytest.mark.parametrize(
    "settings", [{}, {"share_heads": False}, {"use_value_table": False}], ids=str
)
def test_relation_attention_creates_no_tensor_larger_than_scores(settings, largest_of_layer):
    assert largest_of_layer(**settings) == SCORES


def test_relation_attention_with_many_relations(largest_of_layer):
    # PyTorch's sums by relation have one more entry, for pairs without an edge.
    assert largest_of_layer(97) - BATCH * HEADS * LENGTH_Q * 98 in (0, 1)


def test_relation_attention_processes_channels_one_by_one(largest_of_layer):
    assert largest_of_layer((LABELS, 7)) == SCORES


@pytest.mark.parametrize("one_hot", [False, True])
def test_largest_tensor_detects_edge_vectors(one_hot, rng):
    table = rng.normal(size=(LABELS, DEPTH)).astype("float32")
    labels = rng.integers(0, LABELS, (LENGTH_Q, LENGTH_K)).astype("int32")

    def look_up(inputs, others):
        rows = ops.one_hot(others[0], LABELS) if one_hot else ops.take(inputs[0], others[0], axis=0)
        return ops.matmul(rows, inputs[0]) if one_hot else rows

    assert largest_tensor(look_up, [table], [labels]) == LENGTH_Q * LENGTH_K * max(
        DEPTH, LABELS * one_hot
    )
