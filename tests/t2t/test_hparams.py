import json
import pathlib
import re

import pytest

from t2t_relpos.models import TransformerConfig
from t2t_relpos.t2t import SETS, config_from_hparams, parse_hparams

FILE = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "hparams.json").read_text())
# The differences of each set from basic_params1, recorded from tensor2tensor and score2perf.
RECORDED = {name: FILE["basic_params1"] | differences for name, differences in FILE["sets"].items()}
# The hparams for which a set can't be imported. All other sets can.
MIXTURE = CONVOLUTIONS = {"ffn_layer"}
MEMORY = {"memory_type", "split_targets_chunk_length"}
AREA = {"area_key_mode", "area_value_mode", "max_area_width", "num_area_layers"}
REFUSED = {
    "lmx_moe": MIXTURE,
    "lmx_moe_h1k_f4k_x32": MIXTURE,
    "lmx_moe_h1k_f8k_x16": MIXTURE,
    "transformer_base_vq1_16_nb1_packed_dan_b01_scales": MIXTURE,
    "transformer_base_vq1_16_nb1_packed_nda_b01_scales": MIXTURE,
    "transformer_base_vq1_16_nb1_packed_nda_b01_scales_dialog": MIXTURE,
    "transformer_base_vq_ada_32ex_packed": MIXTURE,
    "transformer_cifar10_memory_v0": MEMORY,
    "transformer_common_voice": CONVOLUTIONS,
    "transformer_common_voice_tpu": CONVOLUTIONS,
    "transformer_imagenet64_memory_v0": MEMORY,
    "transformer_librispeech": CONVOLUTIONS,
    "transformer_librispeech_tpu": CONVOLUTIONS,
    "transformer_librispeech_tpu_v2": CONVOLUTIONS,
    "transformer_librispeech_v2": CONVOLUTIONS,
    "transformer_librispeech_with_area_attention": CONVOLUTIONS | AREA,
    "transformer_parameter_attention_a": {"ffn_layer"},
    "transformer_parameter_attention_b": {
        "ffn_layer",
        "parameter_attention_key_channels",
        "parameter_attention_value_channels",
    },
    "transformer_prepend": {"prepend_mode"},
    "transformer_prepend_v1": {"prepend_mode"},
    "transformer_prepend_v2": {"prepend_mode"},
    "transformer_tall_finetune_uniencdec": {"unidirectional_encoder"},
    "transformer_tall_train_uniencdec": {"unidirectional_encoder"},
    "transformer_topk_16_packed": MIXTURE,
    "transformer_tpu_with_conv": CONVOLUTIONS,
    "transformer_wikitext103_l16k_memory_v0": MEMORY,
    "transformer_wikitext103_l4k_memory_v0": MEMORY,
}
TIED = "shared_embedding_and_softmax_weights"


def config(overrides="", hparams_set="transformer_relative_tiny", **arguments):
    return config_from_hparams(parse_hparams(hparams_set, overrides), 37, **arguments)


def test_sets_match_the_recorded_names():
    assert SETS.keys() == RECORDED.keys()
    assert len(SETS) == 120
    assert REFUSED.keys() < SETS.keys()


@pytest.mark.parametrize("hparams_set", RECORDED)
def test_sets_equal_tensor2tensor(hparams_set):
    hparams = parse_hparams(hparams_set)
    assert hparams == RECORDED[hparams_set]
    for key, value in hparams.items():
        assert type(value) is type(RECORDED[hparams_set][key]), key


def test_page_lists_supported_and_refused_sets():
    page = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "t2t_hparams_sets.md"
    known, refused, _training = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)
    rows = [row.split("|")[1:3] for row in known.splitlines()[2:]]
    sets = [re.findall(r"`(\w+)`", names) for _, names in rows]
    assert sorted(sum(sets, [])) == sorted(SETS.keys() - REFUSED.keys())
    assert [int(label.split(":")[1]) for label, _ in rows] == [len(names) for names in sets]
    listed = {}
    for row in refused.splitlines()[2:]:
        hparams, names = (re.findall(r"`(\w+)[=`]", column) for column in row.split("|")[1:3])
        listed |= dict.fromkeys(names, set(hparams))
    assert listed == REFUSED


@pytest.mark.parametrize("hparams_set", RECORDED)
def test_sets_are_supported_or_refused_by_hparam(hparams_set):
    hparams = parse_hparams(hparams_set)
    # lmx_relative leaves it at 0, which tensor2tensor refuses.
    hparams["max_relative_position"] = hparams["max_relative_position"] or 5
    if hparams_set in REFUSED:
        with pytest.raises(ValueError) as error:
            config_from_hparams(hparams, 37, language_model=True)
        assert set(re.findall(r"Expected (\w+) to be", str(error.value))) == REFUSED[hparams_set]
        return
    config = config_from_hparams(hparams, 37, language_model=True)
    heads = hparams["num_heads"]
    assert (config.hidden_dim, config.intermediate_dim, config.num_heads) == (
        hparams["hidden_size"],
        hparams["filter_size"],
        heads,
    )
    assert config.num_decoder_layers == (
        hparams["num_decoder_layers"] or hparams["num_hidden_layers"]
    )
    channels = hparams["attention_key_channels"] or hparams["hidden_size"]
    assert config.head_dims == (channels // heads, hparams["hidden_size"] // heads)
    assert config.tie_embeddings == hparams[TIED]
    assert config.relative_v2 == (hparams["self_attention_type"] == "dot_product_relative_v2")
    assert config.target_space_id is None


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
        (
            "sampling_method=random,sampling_temp=1",
            {"sampling_method": "random", "sampling_temp": 1.0},
        ),
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


def test_parse_hparams_knows_hparams_that_only_some_sets_have():
    hparams_set = "t_rel_len2048_dropout15_tiny"
    hparams = parse_hparams(hparams_set, "block_length=64,multiproblem_schedule_max_examples=3")
    changes = {"block_length": 64, "multiproblem_schedule_max_examples": 3.0}
    assert hparams == RECORDED[hparams_set] | changes
    # The set has 0, an int. tensor2tensor keeps the type of the default, a float.
    hparams = parse_hparams("transformer_tall_train_tied", "multiproblem_schedule_max_examples=0.5")
    assert hparams["multiproblem_schedule_max_examples"] == 0.5
    with pytest.raises(ValueError, match="Expected the name of an hparam of transformer_tiny"):
        parse_hparams("transformer_tiny", "block_length=64")


def test_parse_hparams_rejects_an_unknown_set():
    message = "Received: 'transformer_relativ'. Did you mean 'transformer_relative'"
    with pytest.raises(ValueError, match=message):
        parse_hparams("transformer_relativ")


# Everything else is equal to the defaults.
RELATIVE_BIG = TransformerConfig(
    vocab_size=37,
    hidden_dim=1024,
    intermediate_dim=4096,
    num_heads=16,
    max_relative_position=20,
    dropout=0.3,
    attention_dropout=0.1,
    activation_dropout=0.1,
    target_space_id=0,
)
TRANSLATION = [
    ("transformer_relative_big", "", RELATIVE_BIG.to_dict()),
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
    ("transformer_relative_tiny", "pos=emb", {"position": "relative+learned"}),
    ("transformer_clean", "", {"max_length": 256}),
    ("transformer_k128", "", {"key_dim": 16, "value_dim": None}),
    ("transformer_tiny", "attention_value_channels=192", {"key_dim": None, "value_dim": 48}),
    ("transformer_librispeech_v1", "", {"num_encoder_layers": 5, "num_decoder_layers": 3}),
    (
        "transformer_tiny",
        "sampling_method=random,sampling_temp=0.9,sampling_keep_top_k=40",
        {"position": "sinusoidal"},
    ),
]
LANGUAGE_MODELS = [
    (
        "t_rel_len2048_h384_att512_fs1024_n8_dropout20",
        "",
        {
            "position": "relative_v2+sinusoidal",
            "max_relative_position": 1024,
            "hidden_dim": 384,
            "key_dim": 64,
            "value_dim": None,
            "num_decoder_layers": 8,
            "share_heads": False,
            "use_value_table": False,
            "tie_embeddings": False,
        },
    ),
    ("lmx_relative_nopos", "max_relative_position=7", {"position": "relative_v2"}),
    (
        "lmx_relative",
        "max_relative_position=7,pos=emb,heads_share_relative_embedding=True,"
        "add_relative_to_values=True",
        {"position": "relative_v2+learned", "share_heads": True, "use_value_table": True},
    ),
    ("transformer_relative_tiny", "", {"position": "relative", "share_heads": True}),
    ("score2perf_transformer_base", "", {"position": "sinusoidal", "target_space_id": None}),
]


@pytest.mark.parametrize(
    "language_model, hparams_set, overrides, expected",
    [*((False, *row) for row in TRANSLATION), *((True, *row) for row in LANGUAGE_MODELS)],
)
def test_config_from_hparams(language_model, hparams_set, overrides, expected):
    actual = config(overrides, hparams_set, language_model=language_model).to_dict()
    assert {name: actual[name] for name in expected} == expected


@pytest.mark.parametrize("hparams_set", ["transformer_relative_tiny", "transformer_tiny"])
@pytest.mark.parametrize("key", ["heads_share_relative_embedding", "add_relative_to_values"])
def test_config_from_hparams_ignores_hparams_of_other_attention_types(hparams_set, key):
    assert config(f"{key}=True", hparams_set) == config("", hparams_set)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ("weight_dtype=float16", "Expected weight_dtype to be 'float32' or 'bfloat16'"),
        ("norm_type=batch", "Expected norm_type to be 'layer'.*Received: 'batch'"),
        (
            "attention_key_channels=65",
            "num_heads to divide attention_key_channels.*num_heads=4, attention_key_channels=65",
        ),
        ("ffn_layer=conv_relu_conv", "Expected ffn_layer to be 'dense_relu_dense'"),
        (
            "self_attention_type=dot_product_relative_v2",
            "Expected another self_attention_type .*'dot_product_relative_v2', .*undefined",
        ),
        (
            "self_attention_type=local_relative_mask_right",
            "Expected self_attention_type to be 'dot_product' or .*'local_relative_mask_right'",
        ),
        ("pos=timing_from_features", "Expected pos to be 'timing' or 'emb' or None"),
        ("pos=emb,max_length=0", "Expected max_length to be at least 1 with pos='emb'"),
        (
            "norm_type=batch,ffn_layer=sru",
            "Expected ffn_layer to be .*Expected norm_type to be 'layer'.*Received: 'batch'",
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


def test_config_from_hparams_rejects_unsupported_sets():
    with pytest.raises(ValueError, match="Expected bottom to be {}.*'modalities.bottom'"):
        config("", "score2perf_transformer_base")
    with pytest.raises(ValueError, match="Pass the value .* max_relative_position=K"):
        config("", "lmx_relative", language_model=True)
