import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops

from t2t_relpos.attention import relative_ids
from t2t_relpos.layers import RelationMultiHeadAttention, RelativeMultiHeadAttention


def arrays(rng, *lengths, width=6):
    return [rng.normal(size=(3, n, width)).astype("float32") for n in lengths]


def labels_of(rng, length_q, length_k, num_relations=11):
    return rng.integers(-1, num_relations, size=(3, length_q, length_k)).astype("int32")


def make(**settings):
    return RelationMultiHeadAttention(
        **{"num_heads": 2, "key_dim": 5, "num_relations": 11, **settings}
    )


def expected_outputs(layer, x, y, edges_k, edges_v):
    """Returns outputs by equations 3 and 4 of Shaw et al. with edges `[B, N, T, S, H]`."""

    def heads(dense, inputs):
        return ops.convert_to_numpy(dense(inputs)).reshape(3, inputs.shape[1], 2, 5)

    q, k, v = (
        heads(dense, inputs)
        for dense, inputs in ((layer.query_dense, x), (layer.key_dense, y), (layer.value_dense, y))
    )
    scores = np.einsum("btnh,bsnh->bnts", q, k) + np.einsum("btnh,bntsh->bnts", q, edges_k)
    weights = np.exp(scores / 5**0.5)
    weights /= weights.sum(-1, keepdims=True)
    outputs = np.einsum("bnts,bsnh->btnh", weights, v) + np.einsum(
        "bnts,bntsh->btnh", weights, edges_v
    )
    return ops.convert_to_numpy(layer.output_dense(outputs))


def edge_vectors(table, labels, num_relations=11):
    """Returns the edge vectors `[B, N, T, S, H]`, zero if there is no edge."""
    table = ops.convert_to_numpy(ops.convert_to_tensor(table))
    table = np.broadcast_to(table, (2, *table.shape[-2:]))
    table = np.concatenate([table, np.zeros_like(table[:, :1])], axis=1)
    return table[:, np.where(labels < 0, num_relations, labels)].swapaxes(0, 1)


@pytest.mark.parametrize("share_heads", [True, False])
def test_relation_attention_equals_the_equations(share_heads, rng):
    x, y = arrays(rng, 7, 13)
    labels = labels_of(rng, 7, 13)
    layer = make(share_heads=share_heads)
    outputs = layer(x, y, relations=labels)
    edges = [edge_vectors(table[0], labels) for table in (layer.key_tables, layer.value_tables)]
    np.testing.assert_allclose(outputs, expected_outputs(layer, x, y, *edges), atol=1e-5)


def test_relation_attention_sums_channels(rng):
    x, y = arrays(rng, 7, 13)
    labels, others = labels_of(rng, 7, 13, 11), labels_of(rng, 7, 13, 3)
    layer = make(num_relations=(11, 3))
    outputs = layer(x, y, relations=(labels, others))
    edges = [
        edge_vectors(tables[0], labels) + edge_vectors(tables[1], others, 3)
        for tables in (layer.key_tables, layer.value_tables)
    ]
    np.testing.assert_allclose(outputs, expected_outputs(layer, x, y, *edges), atol=1e-5)


def test_relation_attention_with_dense_edges_equals_the_equations(rng):
    x, y = arrays(rng, 7, 13)
    key_edges, value_edges = rng.normal(size=(2, 3, 7, 13, 5)).astype("float32")
    layer = make(num_relations=None)
    outputs = layer(x, y, key_edges=key_edges, value_edges=value_edges)
    edges = [np.repeat(edges[:, None], 2, axis=1) for edges in (key_edges, value_edges)]
    np.testing.assert_allclose(outputs, expected_outputs(layer, x, y, *edges), atol=1e-5)


@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("lengths", [(7, 7), (3, 11), (1, 5)])
def test_relation_attention_with_relative_ids_equals_relative_attention(share_heads, lengths, rng):
    x, y = arrays(rng, *lengths)
    relative = RelativeMultiHeadAttention(2, 5, max_relative_position=5, share_heads=share_heads)
    relation = make(share_heads=share_heads)
    labels = relative_ids(*lengths, 5)
    relative(x, y), relation(x, y, relations=labels)
    kernels = [v for v in relation.variables if "table" not in v.path]
    for ours, theirs in zip(
        kernels, [v for v in relative.variables if v.name != "table"], strict=True
    ):
        ours.assign(theirs)
    relation.key_tables[0].assign(relative.key_embedding.table)
    relation.value_tables[0].assign(relative.value_embedding.table)
    np.testing.assert_allclose(relation(x, y, relations=labels), relative(x, y), atol=1e-6)


def test_relation_attention_broadcasts_relations_over_the_batch(rng):
    (x,) = arrays(rng, 7)
    labels = labels_of(rng, 7, 7)[0]
    layer = make()
    np.testing.assert_allclose(
        layer(x, x, relations=labels), layer(x, x, relations=np.stack([labels] * 3)), atol=1e-6
    )


def test_edge_vectors_of_one_query_broadcast_over_the_batch(rng):
    layer = RelationMultiHeadAttention(num_heads=3, key_dim=7)
    x, y = (rng.normal(size=shape).astype("float32") for shape in ((5, 1, 11), (5, 13, 11)))
    edges = rng.normal(size=(1, 1, 13, 7)).astype("float32")
    outputs = layer(x, y, key_edges=edges, value_edges=edges)
    expected = layer(x, y, key_edges=np.repeat(edges, 5, 0), value_edges=np.repeat(edges, 5, 0))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)


def test_relation_attention_does_not_mask_pairs_without_an_edge(rng):
    (x,) = arrays(rng, 7)
    layer = make()
    mask = rng.random((3, 7, 7)) > 0.5
    _, scores = layer(
        x, x, relations=np.full((7, 7), -1), attention_mask=mask, return_attention_scores=True
    )
    np.testing.assert_array_equal(
        ops.convert_to_numpy(scores) > 0, np.repeat(mask[:, None], 2, axis=1)
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_relation_attention_in_a_graph_ignores_out_of_range_relations(jit_compile, rng, tf):
    x, y = arrays(rng, 7, 13)
    labels = labels_of(rng, 7, 13)
    layer = make()
    layer(x, y, relations=labels)

    @tf.function(jit_compile=jit_compile)
    def gradients(labels):
        with tf.GradientTape() as tape:
            outputs = layer(x, y, relations=labels)
            loss = tf.reduce_sum(outputs**2)
        return outputs, tape.gradient(loss, [v.value for v in layer.trainable_variables])

    outputs, expected = gradients(tf.constant(labels))
    np.testing.assert_allclose(outputs, layer(x, y, relations=labels), atol=1e-5)
    out_of_range = np.where(labels < 0, rng.choice([-7, 11, 99], size=labels.shape), labels)
    assert (out_of_range != labels).any()
    for ours, theirs in zip(
        gradients(tf.constant(out_of_range, tf.int32))[1], expected, strict=True
    ):
        assert isinstance(ours, tf.Tensor)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="requires JAX")
def test_relation_attention_under_jit_ignores_out_of_range_relations(rng):
    import jax

    x, y = arrays(rng, 7, 13)
    labels = labels_of(rng, 7, 13)
    layer = make()
    eager = layer(x, y, relations=labels)
    weights = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    @jax.jit
    def outputs_and_gradients(labels):
        def loss(weights):
            outputs, _ = layer.stateless_call(weights, others, x, y, relations=labels)
            return (outputs**2).sum(), outputs

        gradients, outputs = jax.grad(loss, has_aux=True)(weights)
        return outputs, gradients

    outputs, expected = outputs_and_gradients(labels)
    np.testing.assert_allclose(outputs, eager, atol=1e-5)
    out_of_range = np.where(labels < 0, rng.choice([-7, 11, 99], size=labels.shape), labels)
    outputs, gradients = outputs_and_gradients(out_of_range.astype("int32"))
    np.testing.assert_allclose(outputs, eager, atol=1e-5)
    assert_all_close(gradients, expected, atol=1e-5)
