import numpy as np
import pytest

from trainer.visualization.attention_maps import AttentionMap
from trainer.visualization.table_statistics import distances, mean_logits, row_norms


@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5), (1, 5), (2, 1, 5)])
def test_norms_and_distances(rng, shape):
    table = rng.normal(size=shape)
    norms = row_norms(table)
    assert norms.shape == (shape[0] if len(shape) == 3 else 1, shape[-2])
    for head, row in np.ndindex(norms.shape):
        vector = table[head, row] if len(shape) == 3 else table[row]
        np.testing.assert_allclose(norms[head, row], np.sqrt(sum(x * x for x in vector)))
    assert distances(table) == ([-3, -2, -1, 0, 1, 2, 3] if shape[-2] == 7 else [0])


@pytest.mark.parametrize("heads", [(), (2,)])
def test_mean_logits(rng, heads):
    query, table = rng.normal(size=(2, 11, 5)), rng.normal(size=(*heads, 7, 5))
    weights = np.zeros((2, 11, 11))
    means = mean_logits(
        AttentionMap(query, weights, weights, weights, weights[0] == 0, table, None)
    )
    assert means.shape == (2, 7)
    for head, row in np.ndindex(2, 7):
        vector = table[head, row] if heads else table[row]
        np.testing.assert_allclose(
            means[head, row], np.mean([query[head, i] @ vector for i in range(11)])
        )
