import functools

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from compilation import compile_function
from gradients import output_and_gradients, with_values
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


def test_labels_of_several_channels_equal_edge_vectors_that_are_added(rng):
    x, y = arrays(rng, 7, 13)
    labels = [labels_of(rng, 7, 13, num_relations) for num_relations in (11, 3)]
    by_label, by_edge = make(num_relations=(11, 3)), make(num_relations=None)
    outputs = by_label(x, y, relations=labels)
    edges = {}
    for name, tables in (("key", by_label.key_tables), ("value", by_label.value_tables)):
        # Label -1 is the absence of an edge, which has no vector.
        padded = [np.pad(ops.convert_to_numpy(table), [(0, 1), (0, 0)]) for table in tables]
        edges[f"{name}_edges"] = sum(
            table[each] for table, each in zip(padded, labels, strict=True)
        )
    by_edge(x, y, **edges)
    by_edge.set_weights([v.value for v in by_label.variables if "table" not in v.path])
    np.testing.assert_allclose(outputs, by_edge(x, y, **edges), atol=1e-5)


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
