"""`CausalLM` with a config: positions, head sizes, caches, empty prompts, and saved files."""

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops

from t2t_relpos.decoding import beam_search, greedy_search, score_tokens
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig
from t2t_relpos.models.config import POSITIONS
from t2t_relpos.models.folded import FoldedTransformer, can_fold, fold_weights

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


@pytest.mark.parametrize("position", POSITIONS)
def test_logits_are_projected_states(position):
    model = make_model(position=position, normalize_first="v2" not in position)
    ids = random_ids(3, 7) * (np.arange(7) < np.array([[7], [4], [2]]))
    states = model.states(ids)
    assert tuple(states.shape) == (3, 7, 12)
    logits = ops.convert_to_numpy(model.output_embedding(states, reverse=True))
    expected = ops.convert_to_numpy(model(ids))
    np.testing.assert_allclose(logits[ids != 0], expected[ids != 0], atol=1e-5)


def logits_of_steps(step, state, ids):
    """Returns the logits `[B, T, V]` of steps with given ids."""
    previous, logits = np.zeros(len(ids), "int32"), []
    for t in range(ids.shape[1]):
        each, state = step(ops.convert_to_tensor(previous), state)
        logits.append(ops.convert_to_numpy(each))
        previous = ids[:, t].astype("int32")
    return np.stack(logits, axis=1)


def uncached_greedy(model, prompts, max_length):
    """Returns the continuations that calls of the whole model choose."""
    ids = np.zeros((len(prompts), max_length), "int64")
    ids[:, : prompts.shape[1]] = prompts
    ended = np.zeros(len(ids), bool)
    for t in range(prompts.shape[1], max_length):
        # Searches never choose padding.
        best = 1 + ops.convert_to_numpy(model(ids))[:, t, 1:].argmax(-1)
        ids[:, t] = np.where(ended, 0, best)
        ended |= ids[:, t] == 1
    return ids


@pytest.mark.parametrize(
    "settings",
    [
        *({"position": position} for position in POSITIONS),
        *({"position": x, **UNLIKE_HEADS} for x in ("relative", "relative_v2+learned", "none")),
        {"max_relative_position": (5, 1)},
        {"max_relative_position": (0, 3)},
    ],
    ids=str,
)
def test_steps_compute_the_logits_of_a_call(settings):
    model = make_model(share_heads=False, tie_embeddings=False, **settings)
    ids = random_ids(2, 6)
    expected = ops.convert_to_numpy(model(ids))
    found = logits_of_steps(model.step, model.encode(ids, 6), ids)
    np.testing.assert_allclose(found, expected, atol=3e-5)
    assert can_fold(model)
    folded = FoldedTransformer(model.config, fold_weights(model))
    for growing in (False, True):
        state, step = folded.start_search(ids[:, :0], 6, 1, growing=growing)
        found = logits_of_steps(step, state, ids)
        np.testing.assert_allclose(found, expected, atol=3e-5)


@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("use_value_table", [True, False])
def test_distances_from_k_on_have_no_vector(share_heads, use_value_table):
    settings = {"share_heads": share_heads, "use_value_table": use_value_table}
    model = make_model(position="relative_v2", num_decoder_layers=1, **settings)
    attention = model.blocks[0].self_attention
    expected_rows = (3, 6) if share_heads else (2, 3, 6)
    assert tuple(attention.key_embedding.shape) == expected_rows
    assert (attention.value_embedding is not None) == use_value_table
    clipped = make_model(position="relative", num_decoder_layers=1, **settings)
    clipped.set_weights(
        [
            w.value if "embedding/" not in w.path or w.shape[-2] != 7 else np.zeros(w.shape)
            for w in clipped.weights
        ]
    )
    # A clipped table with zeros at -K computes the same.
    clipped.blocks[0].self_attention.key_embedding.table.assign(attention.clipped_tables()[0])
    if use_value_table:
        table = attention.clipped_tables()[1]
        clipped.blocks[0].self_attention.value_embedding.table.assign(table)
    other = {w.path.replace(clipped.name, model.name): w for w in clipped.weights}
    for weight in model.weights:
        if "key_embedding" not in weight.path and "value_embedding" not in weight.path:
            other[weight.path].assign(weight.value)
    ids = random_ids(2, 9)
    found, expected = (ops.convert_to_numpy(each(ids)) for each in (model, clipped))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1


def assert_continues_prompts(length, jit_compile, **settings):
    model = make_model(**settings, **UNLIKE_HEADS)
    prompts = random_ids(2, length)
    found = model.generate(prompts, sampler="greedy", max_length=11, jit_compile=jit_compile)
    np.testing.assert_array_equal(found, uncached_greedy(model, prompts, 11))


@pytest.mark.parametrize(
    "length, settings",
    [
        (0, {"position": "learned"}),
        (3, {"position": "relative_v2+sinusoidal"}),
        (3, {"max_relative_position": (5, 1), "share_heads": False}),
    ],
    ids=str,
)
def test_generate_continues_prompts_as_the_uncached_model(length, settings, eager_searches):
    assert_continues_prompts(length, False, **settings)


@pytest.mark.parametrize("length, position", [(0, "relative_v2+sinusoidal"), (3, "learned")])
def test_compiled_searches_continue_prompts_as_the_uncached_model(length, position):
    assert_continues_prompts(length, "auto", position=position)


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


@pytest.mark.parametrize("position", ["relative_v2+learned", "none"])
def test_saved_models_compute_the_same(position, tmp_path):
    model = make_model(
        position=position, tie_embeddings=False, normalize_first=False, **UNLIKE_HEADS
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids = random_ids(2, 9)
    assert loaded.config == model.config
    np.testing.assert_array_equal(*(ops.convert_to_numpy(each(ids)) for each in (model, loaded)))


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


def test_score_is_that_of_the_logits_of_the_call():
    model, ids = make_model(), random_ids(3, 7)
    ids[1, 4:] = ids[2, 1:] = 0
    expected = score_tokens(model(ids), ids, alpha=0.6)
    assert_all_close(model.score(ids, alpha=0.6), expected, atol=1e-5)


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
