"""Tests of the hparams for tensor2tensor and the batches for OpenNMT-tf."""

import numpy as np
import pytest

from benchmarks.training import opennmt_step, tensor2tensor_step
from t2t_relpos.models import PRESETS, TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams


@pytest.mark.parametrize(
    "preset", [name for name, settings in PRESETS.items() if settings["position"] == "relative"]
)
def test_hparams_from_config_describe_the_architecture(preset):
    config = TransformerConfig.from_preset(preset, vocab_size=31)
    hparams = tensor2tensor_step.hparams_from_config(config.to_dict())
    restored = config_from_hparams(parse_hparams("transformer_base") | hparams, 31)
    assert restored.to_dict() | {"share_heads": config.share_heads} == config.to_dict()


def test_opennmt_convert_batch_keeps_the_sentences():
    inputs, targets = np.array([[5, 1, 0], [4, 4, 1]]), np.array([[3, 1], [1, 0]])
    features, labels = opennmt_step.convert_batch(inputs, targets)
    assert {name: value.tolist() for name, value in features.items()} == {
        "ids": [[6, 2, 0], [5, 5, 2]],
        "length": [2, 3],
    }
    expected = {"ids": [[1, 4], [1, 0]], "ids_out": [[4, 2], [2, 0]], "length": [2, 1]}
    assert {name: value.tolist() for name, value in labels.items()} == expected
