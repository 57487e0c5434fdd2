"""`CausalLM` with a config: continuations, empty prompts, and saved settings.

test_variants.py compares logits and steps with their definition.
"""

import keras
import numpy as np
import pytest
from definition import greedy_outputs
from keras import ops

from t2t_relpos.decoding import beam_search, greedy_search
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

SIZES = {
    "vocab_size": 13,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "hidden_dim": 12,
    "intermediate_dim": 16,
    "num_heads": 2,
    "max_relative_position": 3,
    "max_length": 16,
}
UNLIKE_HEADS = {"key_dim": 5, "value_dim": 3}


def make_model(**settings):
    keras.utils.set_random_seed(3)
    model = CausalLM(config=TransformerConfig(**SIZES | settings))
    # Tables, biases and normalizations must have an effect.
    rng = np.random.default_rng(5)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * rng.normal(size=variable.shape).astype("float32"))
    return model


def random_ids(rows, length, seed=1):
    return np.random.default_rng(seed).integers(2, 13, (rows, length))


@pytest.mark.parametrize(
    "length, compiles, settings",
    [
        (0, False, {"position": "learned"}),
        (3, False, {"max_relative_position": (5, 1), "share_heads": False}),
        (0, True, {"position": "relative_v2+sinusoidal"}),
        (3, True, {"position": "learned"}),
    ],
    ids=str,
)
def test_generate_continues_prompts_as_the_uncached_model(length, compiles, settings, request):
    if not compiles:
        request.getfixturevalue("eager_searches")
    model = make_model(**settings, **UNLIKE_HEADS)
    prompts = random_ids(2, length)
    options = {"max_length": 11, "jit_compile": "auto" if compiles else False}
    found = model.generate(prompts, sampler="greedy", **options)
    np.testing.assert_array_equal(found, greedy_outputs(model, prompts, 11))


def test_beam_search_equals_one_without_caches(eager_searches):
    model = make_model(position="relative_v2", **UNLIKE_HEADS)
    prompts = random_ids(2, 2)
    expected = model.generate(prompts, sampler="beam", max_length=9)

    def step(ids, state):
        position = ops.max(state["position"])
        # The logits of a position depend on the ids before it.
        all_ids = ops.where(ops.arange(9) == position - 1, ids[:, None], state["ids"])
        logits = ops.take(model(all_ids, training=False), position, axis=1)
        return logits, {"ids": all_ids, "position": state["position"] + 1}

    state = {"ids": np.zeros((2, 9), "int32"), "position": np.zeros(2, "int32")}
    found = beam_search(step, state, 2, 9, prefix=prompts)
    np.testing.assert_array_equal(found.ids[:, 0], expected)


def test_samplers_accept_empty_prompts(eager_searches):
    model = make_model(position="relative_v2")
    found = model.generate(np.zeros((3, 0), "int32"), sampler="top_k", max_length=8)
    assert found.shape == (3, 8) and found.max() < 13
    result = greedy_search(model.step, model.encode(np.zeros((3, 0)), 8), 3, 8)
    expected = model.generate(np.zeros((3, 0), "int32"), sampler="greedy", max_length=8)
    np.testing.assert_array_equal(ops.convert_to_numpy(result.ids)[:, 0], expected)


@pytest.mark.parametrize("given, distances", [((3, 1), (3, 1)), ([3, 3], 3)])
def test_a_model_made_by_arguments_saves_its_distances(given, distances, tmp_path):
    model = CausalLM(13, 1, 12, 16, 2, given)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        assert each.get_config()["max_relative_position"] == distances
        assert each.config.max_relative_position == distances
    ids = random_ids(2, 9)
    np.testing.assert_array_equal(*(ops.convert_to_numpy(each(ids)) for each in (model, loaded)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Received: no vocab_size, num_layers"),
        ({"config": {"vocab_size": 3}}, "to be a TransformerConfig"),
        ({"config": TransformerConfig(**SIZES), "num_layers": 2}, "Received: num_layers"),
    ],
)
def test_wrong_settings_raise_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        CausalLM(**arguments)


def test_an_encoder_refuses_relative_v2():
    config = TransformerConfig(**SIZES, position="relative_v2")
    with pytest.raises(ValueError, match="self_attention_type"):
        Transformer(config)


def test_head_sizes_replace_the_division_of_the_width():
    sizes = SIZES | {"num_heads": 5}
    with pytest.raises(ValueError, match="`num_heads` to divide `hidden_dim`, or both"):
        TransformerConfig(**sizes)
    model = CausalLM(config=TransformerConfig(**sizes, **UNLIKE_HEADS))
    assert tuple(model.blocks[0].self_attention.query_dense.kernel.shape) == (12, 5, 5)
    assert tuple(model(random_ids(1, 4)).shape) == (1, 4, 13)
    inputs = {"inputs": random_ids(1, 4), "targets": random_ids(1, 3)}
    transformer = Transformer(TransformerConfig(**sizes, **UNLIKE_HEADS))
    assert tuple(transformer(inputs).shape) == (1, 3, 13)
