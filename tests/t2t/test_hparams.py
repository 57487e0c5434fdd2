import json
import pathlib

import pytest

from t2t_relpos.models import TransformerConfig
from t2t_relpos.t2t import SETS, config_from_hparams, parse_hparams

RECORDED = json.loads(
    (pathlib.Path(__file__).parents[1] / "reference" / "hparams.json").read_text()
)
TIED = "shared_embedding_and_softmax_weights"


def config(overrides="", hparams_set="transformer_relative_tiny", **arguments):
    return config_from_hparams(parse_hparams(hparams_set, overrides), 37, **arguments)


def test_sets_match_the_recorded_names():
    assert SETS.keys() == RECORDED.keys()


@pytest.mark.parametrize("hparams_set", RECORDED)
def test_sets_equal_tensor2tensor(hparams_set):
    hparams = parse_hparams(hparams_set)
    assert hparams == RECORDED[hparams_set]
    for key, value in hparams.items():
        assert type(value) is type(RECORDED[hparams_set][key]), key


@pytest.mark.parametrize(
    "text, changes",
    [
        (" hidden_size = 64 ,", {"hidden_size": 64}),
        ("num_heads=2,hidden_size=64", {"num_heads": 2, "hidden_size": 64}),
        ("pos=emb", {"pos": "emb"}),
        ("pos=None", {"pos": None}),
        ("pos=none", {"pos": None}),
        ("pos=", {"pos": None}),
        ("label_smoothing=0", {"label_smoothing": 0.0}),
        ("layer_prepostprocess_dropout=1e-1", {"layer_prepostprocess_dropout": 0.1}),
        ("learning_rate_minimum=1e-5", {"learning_rate_minimum": 1e-5}),
        ("learning_rate_minimum=None", {"learning_rate_minimum": None}),
        ("shared_embedding=True", {"shared_embedding": True}),
        ("shared_embedding=0", {"shared_embedding": False}),
        ("moe_hidden_sizes=1,2,num_heads=2", {"moe_hidden_sizes": "1,2", "num_heads": 2}),
        ("learning_rate_schedule=constant*linear", {"learning_rate_schedule": "constant*linear"}),
    ],
)
def test_parse_hparams_converts_overrides_to_the_default_type(text, changes):
    hparams = parse_hparams("transformer_relative_tiny", text)
    assert hparams == RECORDED["transformer_relative_tiny"] | changes
    assert [type(hparams[key]) for key in changes] == list(map(type, changes.values()))


@pytest.mark.parametrize(
    "text, message",
    [
        ("hidden_sise=64", "Received: 'hidden_sise'. Did you mean 'hidden_size'?"),
        ("hidden_size", "Expected hparams as key=value,key=value. Received: 'hidden_size'"),
        ("=64", "Expected hparams as key=value,key=value. Received: '=64'"),
        ("pos=emb,pos=timing", "Expected each hparam at most once. Received: 'pos' twice"),
        ("hidden_size=64.0", "Expected hidden_size to be of type int. Received: hidden_size=64.0"),
        ("hidden_size=", "Expected hidden_size to be of type int. Received: hidden_size=."),
        ("label_smoothing=much", "Expected label_smoothing to be of type float"),
        ("learning_rate_minimum=low", "Expected learning_rate_minimum to be of type float"),
        ("shared_embedding=yes", "Expected shared_embedding to be of type bool"),
        ("loss=x", "Expected loss to be of type dict. Received: loss=x"),
    ],
)
def test_parse_hparams_rejects_invalid_overrides(text, message):
    with pytest.raises(ValueError) as error:
        parse_hparams("transformer_relative_tiny", text)
    assert message in str(error.value)


def test_parse_hparams_rejects_an_unknown_set():
    message = (
        "(?s)transformer_relative_tiny.*Received: 'transformer_relativ'. Did you mean "
        "'transformer_relative'"
    )
    with pytest.raises(ValueError, match=message):
        parse_hparams("transformer_relativ")


def test_config_from_hparams_of_a_set():
    # Everything else is equal to the defaults.
    assert config(hparams_set="transformer_relative_big", target_space_id=3) == TransformerConfig(
        vocab_size=37,
        hidden_dim=1024,
        intermediate_dim=4096,
        num_heads=16,
        max_relative_position=20,
        dropout=0.3,
        attention_dropout=0.1,
        activation_dropout=0.1,
        target_space_id=3,
    )


@pytest.mark.parametrize(
    "hparams_set, overrides, expected",
    [
        ("transformer_tiny", "", {"position": "sinusoidal"}),
        ("transformer_tiny", "pos=emb,max_length=61", {"position": "learned", "max_length": 61}),
        ("transformer_tiny", "pos=None", {"position": "none"}),
        ("transformer_relative_tiny", "pos=timing", {"position": "relative+sinusoidal"}),
        ("transformer_base_v1", "", {"normalize_first": False}),
        (
            "transformer_tiny",
            "num_encoder_layers=3,num_hidden_layers=5",
            {"num_encoder_layers": 3, "num_decoder_layers": 5},
        ),
        ("transformer_tiny", f"{TIED}=False", {"tie_embeddings": False}),
        ("transformer_tiny", "use_target_space_embedding=False", {"target_space_id": None}),
        ("transformer_tiny", "norm_epsilon=1e-3", {"layer_norm_epsilon": 1e-3}),
    ],
)
def test_config_from_hparams_applies_overrides(hparams_set, overrides, expected):
    actual = config(overrides, hparams_set).to_dict()
    assert {name: actual[name] for name in expected} == expected


@pytest.mark.parametrize("hparams_set", ["transformer_relative_tiny", "transformer_tiny"])
@pytest.mark.parametrize("key", ["heads_share_relative_embedding", "add_relative_to_values"])
def test_config_from_hparams_ignores_hparams_of_other_attention_types(hparams_set, key):
    assert config(f"{key}=True", hparams_set) == config("", hparams_set)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ("norm_type=batch", "Expected norm_type to be 'layer'.*Received: 'batch'"),
        ("attention_key_channels=64", "Expected attention_key_channels to be 0.*Received: 64"),
        ("ffn_layer=conv_relu_conv", "Expected ffn_layer to be 'dense_relu_dense'"),
        ("self_attention_type=dot_product_relative_v2", "dot_product_relative_v2"),
        (
            "pos=emb",
            r"Expected self_attention_type and pos to be.*\('dot_product_relative', 'emb'\)",
        ),
        (
            "layer_preprocess_sequence=none",
            "Expected layer_preprocess_sequence and layer_postprocess_sequence",
        ),
        (
            f"shared_embedding=True,{TIED}=False",
            "Expected shared_embedding without shared softmax weights to be False",
        ),
        ("max_relative_position=0", "Expected max_relative_position to be at least 1.*Received: 0"),
        ("num_heads=3", "Expected `num_heads` to divide `hidden_dim`"),
    ],
)
def test_config_from_hparams_rejects_unsupported_values(overrides, message):
    with pytest.raises(ValueError, match=message):
        config(overrides)
