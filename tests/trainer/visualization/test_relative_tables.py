import numpy as np
import pytest

from trainer.visualization.relative_tables import read_tables, row_norms, table_distances


@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5), (1, 5), (2, 1, 5)])
def test_norms_and_distances(rng, shape):
    table = rng.normal(size=shape)
    expected = np.sqrt((table**2).sum(-1)).reshape(-1, shape[-2])
    np.testing.assert_allclose(row_norms(table), expected)
    assert table_distances(table) == ([-3, -2, -1, 0, 1, 2, 3] if shape[-2] == 7 else [0])


def test_tables_of_all_layers(transformer):
    config, tables = transformer.config, read_tables(transformer)
    num_layers = {kind: len(layers) for kind, layers in tables.items()}
    assert num_layers == {"encoder": 2, "decoder": 3, "cross": 3}
    rows = 2 * config.max_relative_position + 1
    shape = (rows, 7) if config.share_heads else (2, rows, 7)
    for kind, layers in tables.items():
        has_tables = config.relative and (kind != "cross" or config.relative_cross_attention)
        expected = [
            shape if has_tables and is_used else None
            for is_used in (config.use_key_table, config.use_value_table)
        ]
        for layer in layers:
            assert [None if table is None else table.shape for table in layer] == expected
    if tables["decoder"][2][1] is not None:
        embedding = transformer.decoder_layers[2].self_attention.value_embedding
        np.testing.assert_array_equal(tables["decoder"][2][1], embedding.table)
