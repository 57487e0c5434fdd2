"""Tests of the training benchmark's FLOP counts."""

import numpy as np
import pytest

from benchmarks.training import matmul_rate
from t2t_relpos.models import Transformer, TransformerConfig

SIZES = {"vocab_size": 31, "num_encoder_layers": 2, "num_decoder_layers": 3, "num_heads": 3}


@pytest.mark.parametrize("width, inner", [(12, 17), (12, 12), (12, 36)])
def test_count_weights_counts_each_matrix_once(width, inner):
    config = TransformerConfig(hidden_dim=width, intermediate_dim=inner, **SIZES)
    counts = matmul_rate.count_weights(config.to_dict())
    elements = sum(count * rows * columns for (_, rows, columns), count in counts.items())
    model = Transformer(config)
    ids = np.ones((1, 1), "int32")
    model({"inputs": ids, "targets": ids})
    # Relative-position tables are not counted.
    matrices = [w for w in model.weights if len(w.shape) > 1 and "table" not in w.path]
    assert elements == sum(int(np.prod(weight.shape)) for weight in matrices)


def test_count_flops_of_a_training_step():
    config = TransformerConfig(hidden_dim=12, intermediate_dim=17, **SIZES).to_dict()
    source = matmul_rate.count_flops(config, {"source": 1, "target": 0})
    target = matmul_rate.count_flops(config, {"source": 0, "target": 1})
    # Each weight is used in three products (the forward pass and two gradients) of two FLOPs each.
    assert source == 6 * (2 * (4 * 12 * 12 + 2 * 12 * 17) + 3 * 2 * 12 * 12)
    assert target == 6 * (3 * (6 * 12 * 12 + 2 * 12 * 17) + 31 * 12)
    assert matmul_rate.count_flops(config, {"source": 5, "target": 7}) == 5 * source + 7 * target
