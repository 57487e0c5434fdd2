import json
import pathlib

import keras
import numpy as np
import pytest
from comparisons import assert_all_equal
from small_transformers import small_config

from t2t_relpos.models import Transformer
from t2t_relpos.t2t import config_from_hparams, load_t2t_weights, parse_hparams, t2t_weights
from t2t_relpos.t2t.weight_names import (
    canonical_name,
    canonical_weights,
    expected_shapes,
    shard_sizes,
)

DOUBLED = json.loads(
    (pathlib.Path(__file__).parents[1] / "reference" / "doubled_scopes.json").read_text()
)
BODY = "transformer/body"
DOUBLED_SCOPE = f"transformer/parallel_0_4/transformer/{BODY}"
ATTENTION = f"{BODY}/encoder/layer_0/self_attention/multihead_attention"
KERNEL = f"{ATTENTION}/v/kernel"
SHARED = "transformer/symbol_modality_37_24/shared"


def make_transformer(**settings):
    sizes = {"vocab_size": 37, "hidden_dim": 24, "intermediate_dim": 40, "num_heads": 4}
    return Transformer(small_config(**sizes | {"target_space_id": 0} | settings))


def weight_values(model):
    return [keras.ops.convert_to_numpy(v) for v in model.weights]


@pytest.fixture(scope="module")
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
        (f"{DOUBLED_SCOPE}/decoder/layer_0_1/ffn/bias", f"{BODY}/decoder/layer_0/ffn/bias"),
        (
            f"while/transformer/parallel_11/transformer/{BODY}/encoder/layer_13/ffn/conv2/bias",
            f"{BODY}/encoder/layer_13/ffn/conv2/bias",
        ),
        (KERNEL, KERNEL),
        # An unknown form is returned unchanged.
        (f"{BODY}/decoder/layer_0_1/ffn/bias",) * 2,
        ("transformer/parallel_0_4/body/decoder/layer_0_1/ffn/bias",) * 2,
    ],
)
def test_canonical_name_removes_doubled_scopes(name, canonical):
    assert canonical_name(name) == canonical


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


@pytest.mark.parametrize("vocab_size, num_shards", [(32, 16), (37, 3), (15, 16)])
def test_shards_split_embedding_rows(vocab_size, num_shards, rng):
    sizes = shard_sizes(vocab_size, num_shards)
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
    others = [
        "global_step",
        "training/beta1_power",
        "beta2_power_1",
        "losses_avg/problem_0/training_loss",
        "train_stats/problem_0_steps",
        "loss_scale",
        f"training/{KERNEL}/Adam",
        f"{KERNEL}/Adam",
        f"{KERNEL}/Adam_1",
        f"{KERNEL}/ExponentialMovingAverage",
        f"{SHARED}/weights_3/Adafactor_1",
    ]
    extended = {**arrays, **{name: np.array(7, "int64") for name in others}}
    assert canonical_weights(extended).keys() == arrays.keys()
    load_t2t_weights(model, extended)
    np.testing.assert_array_equal(t2t_weights(model)[KERNEL], arrays[KERNEL])


def test_canonical_weights_keeps_weights_of_three_dimensions():
    # They have no suffix `/kernel`. They must be reported, not ignored.
    assert f"{ATTENTION}/v" in canonical_weights({f"{ATTENTION}/v": 0, f"{ATTENTION}/q": 0})


@pytest.mark.parametrize(
    "changes, messages",
    [
        (
            {KERNEL: None, f"{SHARED}/weights_11": None},
            [
                "Expected a checkpoint with the variables that the hparams describe.",
                f"missing: {KERNEL}, expected shape [24, 24] (check hidden_size",
                f"missing: {SHARED}/weights_11, expected shape [2, 24] (check the vocabulary",
            ],
        ),
        (
            {f"{ATTENTION}/gate/kernel": np.zeros((24, 24)), "extra": np.zeros(3)},
            [
                f"unexpected: {ATTENTION}/gate/kernel, received shape [24, 24]",
                "unexpected: extra, received shape [3]",
            ],
        ),
        (
            {f"transformer/parallel_1_4/transformer/{KERNEL}": np.zeros((24, 24))},
            [f"two for {KERNEL}: {KERNEL} and transformer/parallel_1_4/transformer/{KERNEL}."],
        ),
        (
            {KERNEL: np.zeros((24, 24), "int32")},
            [f"Received: {KERNEL} of dtype int32 (check weight_dtype)"],
        ),
    ],
    ids=["missing", "unexpected", "two names", "integers"],
)
def test_load_t2t_weights_rejects_other_variables(model, arrays, changes, messages):
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    assert_load_fails(model, arrays, *messages)


@pytest.mark.parametrize(
    "settings, messages",
    [
        (
            {"max_relative_position": 5, "intermediate_dim": 41},
            [
                f"wrong shape: {ATTENTION}/dot_product_attention_relative/relative_positions_keys/"
                "embeddings, expected [7, 6], received [11, 6] "
                "(check self_attention_type, max_relative_position",
                f"wrong shape: {BODY}/decoder/layer_0/ffn/conv2/kernel, expected [40, 24], "
                "received [41, 24] (check filter_size, hidden_size, num_hidden_layers",
            ],
        ),
        (
            {"vocab_size": 41},
            [
                f"missing: {SHARED}/weights_0 to weights_15, expected shape [3, 24] (check",
                "unexpected: transformer/symbol_modality_41_24/shared/weights_0 to weights_15, "
                "received shape [3, 24]",
            ],
        ),
    ],
    ids=["shapes", "shards"],
)
def test_load_t2t_weights_rejects_another_architecture(model, settings, messages):
    assert_load_fails(model, t2t_weights(make_transformer(**settings)), *messages)


def test_load_t2t_weights_limits_the_listed_differences(arrays):
    deep = make_transformer(num_encoder_layers=3, intermediate_dim=41, target_space_id=None)
    with pytest.raises(ValueError) as error:
        load_t2t_weights(deep, arrays)
    text = str(error.value)
    assert text.count("missing: ") == 12 and "and 16 more of these" in text
    assert text.count("unexpected: ") == 1
    assert text.count("wrong shape: ") == 6


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"share_heads": False}, "Expected share_heads=True: tensor2tensor has no variables"),
        ({"use_key_table": False}, "Received: use_key_table=False"),
        ({"use_value_table": False}, "Received: use_value_table=False"),
        ({"relative_cross_attention": True}, "Expected relative_cross_attention=False"),
        ({"max_relative_position": 0}, "of tensor2tensor to be an integer from 1 to"),
        ({"max_relative_position": (3, 2)}, "of tensor2tensor to be an integer from 1 to"),
    ],
)
def test_weights_reject_models_without_t2t_variables(settings, message, arrays):
    model = make_transformer(**settings)
    with pytest.raises(ValueError, match=message):
        t2t_weights(model)
    assert_load_fails(model, arrays, message)
