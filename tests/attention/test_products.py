"""Products with tables, and attention of one head, whose products TensorFlow with oneDNN does not all survive."""

import keras
import numpy as np
import pytest

from t2t_relpos.attention.products import times_rows, times_table
from t2t_relpos.layers import RelationMultiHeadAttention


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads, tables", [(1, None), (1, 1), (3, None), (3, 3)])
def test_times_table(heads, tables, transpose, rng):
    x = rng.normal(size=(5, heads, 7, 11)).astype("float32")
    table = rng.normal(size=(11, 13) if tables is None else (tables, 11, 13)).astype("float32")
    actual = times_table(
        keras.ops.convert_to_tensor(x),
        np.swapaxes(table, -1, -2) if transpose else table,
        transpose,
    )
    np.testing.assert_allclose(actual, x @ table, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
def test_times_rows(heads, rng):
    x, rows = (
        rng.normal(size=shape).astype("float32") for shape in ((5, heads, 7, 11), (7, 11, 13))
    )
    expected = np.einsum("bntx,txy->bnty", x, rows)
    np.testing.assert_allclose(
        times_rows(keras.ops.convert_to_tensor(x), rows), expected, rtol=0, atol=1e-5
    )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's own ways to compute"
)
@pytest.mark.parametrize("tables", [None, 1])
@pytest.mark.parametrize(
    "length, kwargs",
    [
        (17, {}),
        (17, {"causal": True}),
        (101, {"return_weights": False, "recompute": False}),
        (61, {"return_weights": False, "recompute": False, "causal": True}),
        (301, {"return_weights": False, "recompute": True}),
        (523, {}),
        (23, {"query_offset": np.arange(5, dtype="int32")}),
        (23, {"labels": np.arange(5 * 23 * 23, dtype="int32").reshape(5, 23, 23) % 7}),
    ],
    ids=[
        "looked up",
        "causal",
        "diagonals",
        "causal diagonals",
        "blocks",
        "skewed",
        "one offset a row",
        "labels",
    ],
)
def test_one_head_of_many_rows_is_as_of_each_row(
    length, kwargs, tables, rng, outputs_and_gradients
):
    """In float32, which is oneDNN's."""
    import tensorflow as tf

    lead = () if tables is None else (tables,)
    shapes = [(5, 1, length, 11)] * 3 + [(*lead, 7, 11)] * 2
    arrays = [tf.constant(rng.normal(size=shape), "float32") for shape in shapes]
    weigh = tf.constant(rng.normal(size=shapes[0]), "float32")
    together = outputs_and_gradients(arrays, weigh, **kwargs)
    alone = []
    for row in range(5):
        own = {
            name: x[row : row + 1] if name in ("query_offset", "labels") else x
            for name, x in kwargs.items()
        }
        alone.append(
            outputs_and_gradients(
                [x[row : row + 1] for x in arrays[:3]] + arrays[3:], weigh[row : row + 1], **own
            )
        )
    batched = len(together) - 2
    expected = [
        np.concatenate(x) if i < batched else np.sum(x, 0)
        for i, x in enumerate(zip(*alone, strict=True))
    ]
    for actual, x in zip(together, expected, strict=True):
        np.testing.assert_allclose(actual, x, rtol=0, atol=2e-5 * np.abs(x).max())


def test_vectors_of_edges_for_the_whole_batch_of_one_query(rng):
    layer = RelationMultiHeadAttention(num_heads=3, key_dim=7)
    x, y = (rng.normal(size=shape).astype("float32") for shape in ((5, 1, 11), (5, 13, 11)))
    edges = rng.normal(size=(1, 1, 13, 7)).astype("float32")
    outputs = layer(x, y, key_edges=edges, value_edges=edges)
    expected = layer(x, y, key_edges=np.repeat(edges, 5, 0), value_edges=np.repeat(edges, 5, 0))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)
