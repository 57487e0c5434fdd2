import functools

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from compilation import compile_function
from definition import array, attention_layer
from gradients import output_and_gradients, with_values
from keras import ops

from t2t_relpos.layers import RelationMultiHeadAttention


def arrays(rng, *lengths, width=6):
    return [rng.normal(size=(3, n, width)).astype("float32") for n in lengths]


def labels_of(rng, length_q, length_k, num_relations=11):
    return rng.integers(-1, num_relations, size=(3, length_q, length_k)).astype("int32")


def make(**settings):
    return RelationMultiHeadAttention(
        **{"num_heads": 2, "key_dim": 5, "num_relations": 11, **settings}
    )


def vectors_of(tables, labels, edges):
    """Returns the vectors of all pairs, broadcast to `[B, N, T, S, H]`."""
    vectors = edges[:, None]
    for table, each in zip(map(array, tables), labels, strict=True):
        # Label -1 is the absence of an edge, which has no vector.
        padded = np.pad(table, [*[(0, 0)] * (table.ndim - 2), (0, 1), (0, 0)])
        of_pairs = padded[..., np.broadcast_to(each, edges.shape[:3]), :]
        vectors = vectors + (of_pairs[:, None] if table.ndim == 2 else of_pairs.swapaxes(0, 1))
    return vectors


@pytest.mark.parametrize("share_heads", [True, False])
def test_labels_of_several_channels_and_edge_vectors_are_added(share_heads, rng):
    x, y = arrays(rng, 7, 13)
    labels = [labels_of(rng, 7, 13), labels_of(rng, 7, 13, 3)[0]]
    edges = [rng.normal(size=(3, 7, 13, 5)).astype("float32") for _ in range(2)]
    layer = make(num_relations=(11, 3), share_heads=share_heads)
    outputs = layer(x, y, relations=labels, key_edges=edges[0], value_edges=edges[1])
    tables = layer.key_tables, layer.value_tables
    vectors = (vectors_of(each, labels, edge) for each, edge in zip(tables, edges, strict=True))
    np.testing.assert_allclose(outputs, attention_layer(layer, x, y, *vectors), atol=1e-5)


def test_edge_vectors_of_one_query_broadcast_over_the_batch(rng):
    layer = RelationMultiHeadAttention(num_heads=3, key_dim=7)
    x, y = (rng.normal(size=shape).astype("float32") for shape in ((5, 1, 11), (5, 13, 11)))
    edges = rng.normal(size=(1, 1, 13, 7)).astype("float32")
    outputs = layer(x, y, key_edges=edges, value_edges=edges)
    expected = layer(x, y, key_edges=np.repeat(edges, 5, 0), value_edges=np.repeat(edges, 5, 0))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("by_xla", [True, False])
def test_compiled_relation_attention_ignores_out_of_range_relations(by_xla, rng):
    compile_call = compile_function
    if not by_xla:
        if keras.backend.backend() != "tensorflow":
            pytest.skip("only TensorFlow has graphs without XLA")
        import tensorflow as tf

        compile_call = functools.partial(tf.function, autograph=False)
    x, y = arrays(rng, 7, 13)
    labels = labels_of(rng, 7, 13)
    layer = make()
    eager = layer(x, y, relations=labels)
    variables = layer.trainable_variables
    call = compile_call(
        lambda labels, values: with_values(variables, values, lambda: layer(x, y, relations=labels))
    )
    out_of_range = np.where(labels < 0, rng.choice([-7, 11, 99], size=labels.shape), labels)
    assert (out_of_range != labels).any()
    found, expected = (
        output_and_gradients(
            lambda values: call(ops.cast(each, "int32"), values),
            [ops.convert_to_numpy(v) for v in variables],
            eager,
        )
        for each in (out_of_range, labels)
    )
    assert_all_close(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[0], eager, atol=1e-5)
