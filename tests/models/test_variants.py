"""Each variant of the models computes its definition: calls, steps, folded weights, saved files."""

import functools

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from definition import logits_of_language_model, logits_of_transformer
from keras import ops
from small_transformers import random_transformer, small_config, with_noise

from t2t_relpos.decoding import score_tokens
from t2t_relpos.decoding.search import repeat_rows
from t2t_relpos.models import CausalLM
from t2t_relpos.models.config import POSITIONS
from t2t_relpos.models.folded import FoldedTransformer, can_fold, fold_weights

BEAMS, STEPS, VOCAB = 3, 6, 23
# A source is padding only, and a target has padding before a token.
SOURCE = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [0, 0, 0, 0, 0], [8, 8, 22, 1, 0]], "int32")
TARGETS = np.array(
    [[3, 4, 5, 6, 7, 1], [8, 0, 9, 1, 0, 0], [2, 1, 0, 0, 0, 0], [22, 9, 9, 4, 2, 6]]
)
SIZES = {"vocab_size": VOCAB, "num_decoder_layers": 2, "hidden_dim": 12, "num_heads": 2}
TRANSFORMERS = {
    "relative": {"num_encoder_layers": 2, "num_decoder_layers": 3},
    "tables per head": {"share_heads": False, "relative_cross_attention": True},
    "one head, tables per head": {"share_heads": False, "num_heads": 1},
    "key tables only": {"use_value_table": False, "relative_cross_attention": True},
    "value tables only": {"use_key_table": False, "normalize_first": False},
    "K = 0": {"max_relative_position": 0},
    "K above length": {"max_relative_position": 17},
    "left and right": {"max_relative_position": (4, 1), "relative_cross_attention": True},
    "right only": {"max_relative_position": (0, 2), "relative_cross_attention": True},
    "sinusoidal, post-norm": {"position": "sinusoidal", "normalize_first": False},
    "relative and sinusoidal": {"position": "relative+sinusoidal", "target_space_id": 9},
    "learned": {"position": "learned", "tie_embeddings": False, "target_space_id": 2},
    "no positions": {"position": "none", "layer_norm_epsilon": 0.1},
    "heads of another size": {"key_dim": 5, "value_dim": 3, "num_heads": 5},
}
UNLIKE_HEADS = {"key_dim": 5, "value_dim": 3, "normalize_first": False}
UNSHARED = {"share_heads": False, "tie_embeddings": False}
LANGUAGE_MODELS = {
    **{f"language model, {each}": {"position": each} for each in POSITIONS},
    "language model, v2 and learned": {"position": "relative_v2+learned"} | UNLIKE_HEADS | UNSHARED,
    "language model, value tables": {"position": "relative_v2", "use_key_table": False},
    "language model, left and right": {"max_relative_position": (5, 1)} | UNSHARED,
    "language model, right only": {"max_relative_position": (0, 3)} | UNLIKE_HEADS,
}
each_transformer = pytest.mark.parametrize("name", TRANSFORMERS)
each_model = pytest.mark.parametrize("name", [*TRANSFORMERS, *LANGUAGE_MODELS])
assert_close = functools.partial(np.testing.assert_allclose, atol=3e-5, rtol=3e-5)


@functools.cache
def model_of(name):
    """Returns a model, which tests must not change."""
    if name in TRANSFORMERS:
        return random_transformer(0.3, **SIZES | TRANSFORMERS[name])
    return with_noise(CausalLM(config=small_config(**SIZES | LANGUAGE_MODELS[name])), 0.3)


def inputs_of(name):
    return {"inputs": SOURCE, "targets": TARGETS} if name in TRANSFORMERS else TARGETS


@functools.cache
def expected_logits(name):
    if name in TRANSFORMERS:
        return logits_of_transformer(model_of(name), SOURCE, TARGETS)
    return logits_of_language_model(model_of(name), TARGETS)


def folded(name):
    assert can_fold(model_of(name))
    return FoldedTransformer(model_of(name).config, fold_weights(model_of(name)))


@each_model
def test_logits_and_projected_states_equal_the_definition(name):
    model, inputs, expected = model_of(name), inputs_of(name), expected_logits(name)
    assert_close(model(inputs), expected)
    states = model.states(inputs)
    assert tuple(states.shape) == (*TARGETS.shape, 12)
    logits = ops.convert_to_numpy(model.output_embedding(states, reverse=True))
    for row, length in enumerate((6, 4, 2, 6)):
        assert_close(logits[row, :length], expected[row, :length])


@each_model
def test_steps_equal_the_definition(name):
    model, is_transformer = model_of(name), name in TRANSFORMERS
    searches = [(model.encode(SOURCE, STEPS), model.step)]
    for growing in () if is_transformer else (False, True):
        searches.append(folded(name).start_search(SOURCE[:, :0], STEPS, 1, growing=growing))
    for state, step in searches:
        previous = np.zeros(len(TARGETS), "int32")
        for t in range(STEPS):
            logits, state = step(ops.convert_to_tensor(previous), state)
            assert_close(logits, expected_logits(name)[:, t])
            previous = TARGETS[:, t]


@functools.cache
def steps_of_beams(name):
    """Returns (previous ids, expected logits, surviving rows) of each step of a search.

    Some hypotheses have no continuation, and some have several.
    """
    rng, steps = np.random.default_rng(2), []
    source = np.repeat(SOURCE, BEAMS, axis=0)
    targets = np.zeros((len(source), STEPS), "int32")
    for t in range(STEPS):
        logits = logits_of_transformer(model_of(name), source, targets)[:, t]
        beams = rng.integers(BEAMS, size=(len(SOURCE), BEAMS))
        rows = (beams + BEAMS * np.arange(len(SOURCE))[:, None]).ravel().astype("int32")
        steps.append((targets[:, t - 1], logits, rows))
        targets = targets[rows]
        targets[:, t] = rng.integers(1, VOCAB, size=len(targets))
    return steps


@pytest.mark.parametrize("growing", [True, False])
@each_transformer
def test_steps_of_folded_beams_equal_the_definition(name, growing):
    state, step = folded(name).start_search(SOURCE, STEPS, BEAMS, growing=growing)
    state = repeat_rows(state, BEAMS)
    for ids, expected, rows in steps_of_beams(name):
        logits, state = step(ops.convert_to_tensor(ids), state)
        assert_close(logits, expected)
        state = {**state, "ancestors": ops.take(state["ancestors"], rows, axis=0)}


@each_transformer
def test_folded_logits_scores_and_alignments(name):
    model, expected = folded(name), expected_logits(name)
    logits, _ = model.logits_and_alignments(SOURCE, TARGETS)
    assert_close(logits, expected)
    scores, alignments = model.score(SOURCE, TARGETS, 0.6, return_alignments=True)
    expected_scores = score_tokens(expected.astype("float32"), TARGETS, alpha=0.6)
    assert_all_close(scores, expected_scores, rtol=2e-5, atol=5e-5)
    assert_all_close(model.score(SOURCE, TARGETS, 0.6), scores)
    found = model_of(name).score(SOURCE, TARGETS, 0.6, return_alignments=True)
    assert_all_close(found, (expected_scores, alignments), rtol=2e-5, atol=5e-5)
    sums = np.where(SOURCE.any(-1)[:, None], 1.0, 0.0)
    np.testing.assert_allclose(ops.sum(alignments, -1), np.repeat(sums, STEPS, 1), rtol=1e-5)
    np.testing.assert_array_equal(ops.convert_to_numpy(alignments)[1, :, 2:], 0.0)


def test_score_of_a_language_model_equals_the_definition():
    name = "language model, relative"
    expected = score_tokens(expected_logits(name).astype("float32"), TARGETS, alpha=0.6)
    assert_all_close(model_of(name).score(TARGETS, alpha=0.6), expected, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize(
    "name", ["tables per head", "left and right", "learned", "language model, v2 and learned"]
)
def test_saved_models_compute_the_same(name, tmp_path):
    model_of(name).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.config == model_of(name).config
    found, expected = (ops.convert_to_numpy(m(inputs_of(name))) for m in (loaded, model_of(name)))
    np.testing.assert_array_equal(found, expected)
