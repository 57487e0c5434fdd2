import json
import pathlib
import re

import keras
import numpy as np
import pytest
from comparisons import assert_all_equal

from t2t_relpos.models import Transformer, TransformerConfig
from t2t_relpos.t2t import config_from_hparams, load_t2t_weights, parse_hparams, t2t_weights
from t2t_relpos.t2t.variable_scopes import canonical_name, canonical_weights
from t2t_relpos.t2t.weight_names import expected_shapes, shard_sizes

DOUBLED = json.loads(
    (pathlib.Path(__file__).parents[1] / "reference" / "doubled_scopes.json").read_text()
)
ATTENTION = "transformer/body/encoder/layer_0/self_attention/multihead_attention"
SHARED = "transformer/symbol_modality_37_24/shared"


def make_transformer(**settings):
    settings = {
        "vocab_size": 37,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 24,
        "intermediate_dim": 40,
        "num_heads": 4,
        "max_relative_position": 3,
        "target_space_id": 0,
        **settings,
    }
    return Transformer(TransformerConfig(**settings))


def weight_values(model):
    return [keras.ops.convert_to_numpy(v) for v in model.weights]


@pytest.fixture
def model():
    return make_transformer()


@pytest.fixture
def arrays(model, rng):
    """Returns random t2t variables of the model."""
    return {
        name: rng.normal(size=a.shape).astype("float32") for name, a in t2t_weights(model).items()
    }


def recorded_model(record):
    changes = ",".join(f"{key}={value}" for key, value in record["overrides"].items())
    hparams = parse_hparams(record["hparams_set"], changes)
    return Transformer(config_from_hparams(hparams, record["vocab_size"]))


def assert_load_fails(model, arrays, *messages):
    """Asserts that loading raises an error with all messages and leaves the model unchanged."""
    before = weight_values(model)
    with pytest.raises(ValueError) as error:
        load_t2t_weights(model, arrays)
    for message in messages:
        assert message in str(error.value)
    assert_all_equal(before, weight_values(model))


@pytest.mark.parametrize("record", DOUBLED, ids=lambda r: f"{r['hparams_set']}-{r['mode']}")
def test_canonical_weights_of_doubled_scopes_match_the_model(record):
    assert any("/parallel_0_4/" in name for name in record["variables"])
    found = {name: tuple(shape) for name, shape in canonical_weights(record["variables"]).items()}
    assert found == expected_shapes(recorded_model(record))


@pytest.mark.parametrize(
    "name, canonical",
    [
        (
            "transformer/parallel_0_4/transformer/transformer/body/decoder/layer_0_1/ffn/conv1/"
            "kernel",
            "transformer/body/decoder/layer_0/ffn/conv1/kernel",
        ),
        (
            "while/transformer/parallel_11/transformer/transformer/body/encoder/layer_13/ffn/conv2/"
            "bias",
            "transformer/body/encoder/layer_13/ffn/conv2/bias",
        ),
        (f"{ATTENTION}/v/kernel", f"{ATTENTION}/v/kernel"),
        # An unknown form is returned unchanged.
        ("transformer/body/decoder/layer_0_1/ffn/conv1/kernel",) * 2,
        ("transformer/parallel_0_4/body/decoder/layer_0_1/ffn/conv1/kernel",) * 2,
    ],
)
def test_canonical_name_removes_doubled_scopes(name, canonical):
    assert canonical_name(name) == canonical


def test_load_t2t_weights_accepts_doubled_scopes(rng):
    record = DOUBLED[0]
    arrays = {name: rng.normal(size=shape) for name, shape in record["variables"].items()}
    model = recorded_model(record)
    load_t2t_weights(model, arrays)
    name = "transformer/body/decoder/layer_1/ffn/conv2/kernel"
    doubled = f"transformer/parallel_0_4/transformer/{name.replace('layer_1', 'layer_1_1')}"
    np.testing.assert_array_equal(t2t_weights(model)[name], arrays[doubled].astype("float32"))


def test_load_t2t_weights_rejects_a_weight_under_two_names(model, arrays):
    kernel = f"{ATTENTION}/v/kernel"
    duplicate = f"transformer/parallel_1_4/transformer/{kernel}"
    arrays[duplicate] = arrays[kernel]
    assert_load_fails(model, arrays, f"Received two for {kernel}: {kernel} and {duplicate}.")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position": "learned", "max_length": 61, "tie_embeddings": False},
        {"position": "sinusoidal", "normalize_first": False, "target_space_id": None},
    ],
)
def test_weights_round_trip_bit_for_bit(settings, rng):
    model = make_transformer(**settings)
    arrays = {n: rng.normal(size=a.shape).astype("float32") for n, a in t2t_weights(model).items()}
    load_t2t_weights(model, arrays)
    exported = t2t_weights(model)
    assert exported.keys() == arrays.keys()
    for name, array in exported.items():
        assert array.tobytes() == arrays[name].tobytes()
    # All parameters are loaded: none keeps its initial value.
    assert sum(a.size for a in exported.values()) == model.count_params()


@pytest.mark.parametrize("vocab_size", [32, 37, 15])
@pytest.mark.parametrize("num_shards", [16, 3])
def test_shards_split_embedding_rows(vocab_size, num_shards, rng):
    sizes = shard_sizes(vocab_size, num_shards)
    assert sum(sizes) == vocab_size and len(sizes) == num_shards
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1
    model = make_transformer(vocab_size=vocab_size)
    table = rng.normal(size=(vocab_size, 24)).astype("float32")
    model.source_embedding.embeddings.assign(table)
    arrays = t2t_weights(model, num_shards)
    scope = f"transformer/symbol_modality_{vocab_size}_24/shared"
    shards = [arrays[f"{scope}/weights_{i}"] for i in range(num_shards)]
    assert [len(shard) for shard in shards] == sizes
    np.testing.assert_array_equal(np.concatenate(shards), table)
    other = make_transformer(vocab_size=vocab_size)
    load_t2t_weights(other, arrays, num_shards)
    np.testing.assert_array_equal(other.source_embedding.embeddings, table)


def test_load_t2t_weights_ignores_slots_and_counters(model, arrays):
    kernel = f"{ATTENTION}/v/kernel"
    others = [
        "global_step",
        "training/beta1_power",
        "beta2_power_1",
        "losses_avg/problem_0/training_loss",
        "train_stats/problem_0_steps",
        "loss_scale",
        f"training/{kernel}/Adam",
        f"{kernel}/Adam",
        f"{kernel}/Adam_1",
        f"{kernel}/ExponentialMovingAverage",
        f"{SHARED}/weights_3/Adafactor_1",
    ]
    extended = {**arrays, **{name: np.array(7, "int64") for name in others}}
    assert canonical_weights(extended).keys() == arrays.keys()
    load_t2t_weights(model, extended)
    np.testing.assert_array_equal(t2t_weights(model)[kernel], arrays[kernel])


def test_canonical_weights_keeps_all_weights(model):
    names = expected_shapes(model)
    assert f"{ATTENTION}/v/kernel" in names
    assert canonical_weights(names) == names
    # Three-dimensional weights have no `/kernel` suffix. They must be reported, not ignored.
    assert f"{ATTENTION}/v" in canonical_weights({f"{ATTENTION}/v": 0, f"{ATTENTION}/q": 0})


def test_load_t2t_weights_lists_missing_variables(model, arrays):
    del arrays[f"{ATTENTION}/v/kernel"]
    del arrays[f"{SHARED}/weights_11"]
    assert_load_fails(
        model,
        arrays,
        "Expected a checkpoint with the variables that the hparams describe.",
        f"missing: {ATTENTION}/v/kernel, expected shape [24, 24] (check hidden_size",
        f"missing: {SHARED}/weights_11, expected shape [2, 24] (check the vocabulary",
    )


def test_load_t2t_weights_lists_unexpected_variables(model, arrays):
    arrays[f"{ATTENTION}/gate/kernel"] = np.zeros((24, 24))
    arrays["transformer/body/encoder/layer_1/ffn/conv1/bias"] = np.zeros(40)
    arrays["extra"] = np.zeros(3)
    assert_load_fails(
        model,
        arrays,
        f"unexpected: {ATTENTION}/gate/kernel, received shape [24, 24]",
        "layer_1/ffn/conv1/bias, received shape [40] (check filter_size, hidden_size, "
        "num_hidden_layers",
        "unexpected: extra, received shape [3]",
    )


def test_load_t2t_weights_lists_different_shapes():
    wide = t2t_weights(make_transformer(max_relative_position=5, intermediate_dim=41))
    table = f"{ATTENTION}/dot_product_attention_relative/relative_positions_keys/embeddings"
    assert_load_fails(
        make_transformer(),
        wide,
        f"wrong shape: {table}, expected [7, 6], received [11, 6] "
        "(check self_attention_type, max_relative_position",
        "wrong shape: transformer/body/decoder/layer_0/ffn/conv2/kernel, expected [40, 24], "
        "received [41, 24] (check filter_size",
    )


def test_load_t2t_weights_groups_embedding_shards(model):
    with pytest.raises(ValueError) as error:
        load_t2t_weights(model, t2t_weights(make_transformer(vocab_size=41)))
    lines = str(error.value).splitlines()[1:]
    assert [re.sub(r" \(check.*", "", line).strip() for line in lines] == [
        f"missing: {SHARED}/weights_0 to weights_15, expected shape [3, 24]",
        "unexpected: transformer/symbol_modality_41_24/shared/weights_0 to weights_15, "
        "received shape [3, 24]",
    ]


def test_load_t2t_weights_limits_the_listed_differences(arrays):
    deep = make_transformer(num_encoder_layers=3, intermediate_dim=41, target_space_id=None)
    with pytest.raises(ValueError) as error:
        load_t2t_weights(deep, arrays)
    text = str(error.value)
    assert text.count("missing: ") == 12 and "and 16 more of these" in text
    assert text.count("unexpected: ") == 1
    assert text.count("wrong shape: ") == 6


def test_load_t2t_weights_rejects_integer_weights(model, arrays):
    kernel = f"{ATTENTION}/v/kernel"
    arrays[kernel] = np.zeros((24, 24), "int32")
    assert_load_fails(model, arrays, f"Received: {kernel} of dtype int32 (check weight_dtype)")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"share_heads": False}, "Expected share_heads=True: tensor2tensor has no variables"),
        ({"use_key_table": False}, "Received: use_key_table=False"),
        ({"use_value_table": False}, "Received: use_value_table=False"),
        ({"relative_cross_attention": True}, "Expected relative_cross_attention=False"),
        ({"max_relative_position": 0}, "tensor2tensor does not support 0. Received: 0"),
    ],
)
def test_weights_reject_models_without_t2t_variables(settings, message, arrays):
    model = make_transformer(**settings)
    with pytest.raises(ValueError, match=message):
        t2t_weights(model)
    assert_load_fails(model, arrays, message)
