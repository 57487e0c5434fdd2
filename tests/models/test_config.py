import dataclasses
import json

import numpy as np
import pytest

from t2t_relpos.models import PRESETS, TransformerConfig
from t2t_relpos.t2t import SETS, config_from_hparams, parse_hparams


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_are_valid_and_round_trip_through_json(preset):
    config = TransformerConfig.from_preset(preset, vocab_size=101)
    assert "vocab_size" not in PRESETS[preset]
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_presets_are_the_hparams_sets_of_the_same_names():
    names = PRESETS.keys() & SETS.keys()
    assert PRESETS.keys() - names == {"shaw_base", "shaw_big", "tiny"} and len(names) == 7
    for name in names:
        config = config_from_hparams(parse_hparams(name), vocab_size=7)
        assert PRESETS[name] == {key: getattr(config, key) for key in PRESETS[name]}, name
        assert ("max_relative_position" in PRESETS[name]) == config.relative


SIZES = (
    "max_relative_position",
    "share_heads",
    "hidden_dim",
    "intermediate_dim",
    "num_heads",
    "num_encoder_layers",
    "num_decoder_layers",
    "dropout",
    "attention_dropout",
    "activation_dropout",
)


@pytest.mark.parametrize(
    "preset, sizes",
    [
        # Shaw et al. 2018, section 4.1. The paper does not specify the last two.
        ("shaw_base", (16, False, 512, 1024, 8, 6, 6, 0.1)),
        ("shaw_big", (8, True, 1024, 4096, 16, 6, 6, 0.3)),
        ("tiny", (16, True, 128, 256, 4, 4, 4, 0.3, 0.0, 0.0)),
    ],
)
def test_presets_have_the_documented_sizes(preset, sizes):
    config = TransformerConfig.from_preset(preset, vocab_size=7)
    assert tuple(getattr(config, name) for name in SIZES[: len(sizes)]) == sizes


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig(vocab_size=7).dropout = 0.5


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"vocab_size": 0}, "Expected `vocab_size` to be a positive integer"),
        ({"hidden_dim": 30, "num_heads": 8}, "Expected `num_heads` to divide `hidden_dim`"),
        ({"max_relative_position": -1}, "Received: max_relative_position=-1"),
        ({"position": "relative_v2", "max_relative_position": (3, 2)}, "of position='relative_v2'"),
        ({"position": "relative_v2", "max_relative_position": 0}, "of position='relative_v2'"),
        ({"position": "absolute"}, "Expected `position` to be one of relative, .*'absolute'"),
        ({"position": "none", "relative_cross_attention": True}, "Expected a relative `position`"),
        ({"dropout": 1.5}, "Expected `dropout` to be at least 0 and below 1"),
        ({"share_heads": "yes"}, "Expected `share_heads` to be True or False"),
        ({"layer_norm_epsilon": 0.0}, "Expected `layer_norm_epsilon` above 0. Received: .*=0.0"),
        ({"target_space_id": 32}, r"Expected `target_space_id` to be None or in \[0, 32\)"),
    ],
)
def test_config_rejects_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{"vocab_size": 7, **settings})


def test_from_preset_rejects_unknown_names():
    message = "Expected `preset` to be one of .*shaw_base.*'shaw_bas'. Did you mean 'shaw_base'"
    with pytest.raises(ValueError, match=message):
        TransformerConfig.from_preset("shaw_bas", vocab_size=7)
    with pytest.raises(ValueError, match="Received: 'tyni'. Did you mean 'tiny'"):
        TransformerConfig.from_preset("tyni", vocab_size=7)
    with pytest.raises(ValueError, match="Received: 'droput'. Did you mean 'dropout'"):
        TransformerConfig.from_preset("tiny", vocab_size=7, droput=0.1)
    with pytest.raises(ValueError, match="Expected `vocab_size`, which no preset sets"):
        TransformerConfig.from_preset("tiny")


@pytest.mark.parametrize(
    "value, in_json", [([64, 8], [64, 8]), ((np.int64(0), 3), [0, 3]), ((3, 3), 3), ([0, 0], 0)]
)
def test_clipping_distances_in_json(value, in_json):
    config = TransformerConfig(vocab_size=7, max_relative_position=value)
    settings = config.to_dict()
    assert settings["max_relative_position"] == in_json
    loaded = TransformerConfig.from_dict(json.loads(json.dumps(settings)))
    assert loaded == config and hash(loaded) == hash(config)


def test_numpy_settings_are_converted_to_json_types():
    settings = {"vocab_size": np.int64(7), "dropout": np.float32(0.5), "share_heads": np.True_}
    config = TransformerConfig(**settings)
    expected = TransformerConfig(vocab_size=7, dropout=0.5, share_heads=True)
    assert json.loads(json.dumps(config.to_dict())) == expected.to_dict()
