"""Tests of the signatures of an exported language model."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    TopKSampler,
    TopPSampler,
    score_tokens,
)
from t2t_relpos.models import CausalLM, TransformerConfig
from trainer import export
from trainer.serving import warmup
from trainer.serving.generation_settings import GenerationSettings
from trainer.serving.language_module import LanguageModule

V, LENGTH = 13, 11
PROMPTS = np.array([[5, 6, 7], [3, 0, 0], [4, 5, 1]], "int32")
SAMPLERS = {
    "greedy": ({"sampler": "greedy"}, GreedySampler()),
    "beam": ({"sampler": "beam", "beam_size": 3, "alpha": 0.4}, BeamSampler(3, 0.4)),
    "early": ({"sampler": "beam", "early_stopping": True}, BeamSampler(early_stopping=True)),
    "random": ({"sampler": "random", "temperature": 1.5}, TopKSampler(V, 1.5)),
    "top_k": ({"sampler": "random", "top_k": 4}, TopKSampler(4)),
    "top_p": ({"sampler": "random", "top_p": 0.7, "top_k": 9}, TopPSampler(0.7, 9)),
}


def make_model(position="relative_v2+sinusoidal", dtype=None, **settings):
    keras.utils.set_random_seed(3)
    sizes = {"vocab_size": V, "num_decoder_layers": 2, "hidden_dim": 12, "intermediate_dim": 16}
    sizes |= {"num_heads": 2, "max_relative_position": 3, "position": position} | settings
    model = CausalLM(config=TransformerConfig(**sizes), dtype=dtype)
    rng = np.random.default_rng(5)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * rng.normal(size=variable.shape).astype("float32"))
    return model


@functools.cache
def shared_model():
    """Returns the model of `make_model()`, whose weights tests must not change."""
    return make_model()


def make_module(model, **settings):
    return LanguageModule(model, None, GenerationSettings(**{"max_length": LENGTH} | settings))


@functools.cache
def shared_module(name):
    """Returns a module of the shared model with a sampler of SAMPLERS, traced once."""
    return make_module(shared_model(), **SAMPLERS[name][0])


@functools.cache
def uniform(seed, rows):
    return tf.random.stateless_uniform([rows, 1, LENGTH], [seed, 0])


def generated(model, prompts, sampler, seed=None):
    """Returns the ids of `CausalLM.generate`, with the random numbers of a seed."""
    if seed is not None:
        sampler.random_numbers = lambda rows, length: uniform(seed, rows)
    return model.generate(prompts, sampler, max_length=LENGTH, jit_compile=False)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in ("beam", "top_p") else pytest.mark.slow) for x in SAMPLERS],
)
def test_generate_equals_generate_of_the_model(name, eager_searches, request):
    model, module, sampler = shared_model(), shared_module(name), SAMPLERS[name][1]
    is_random = module.settings.sampler == "random"
    if is_random:  # Other tests use the graph of beam search.
        request.getfixturevalue("eager_functions")
    for prompts in (PROMPTS, PROMPTS[:, :0]):
        for seed in (5, 6) if is_random else (None,):
            arguments = {} if seed is None else {"seed": tf.constant(seed)}
            found = module.generate(prompts=tf.constant(prompts), **arguments)
            expected = generated(model, prompts, sampler, seed)
            np.testing.assert_array_equal(found["ids"], expected)
            np.testing.assert_array_equal(found["lengths"], (expected != 0).sum(1))
            scores = score_tokens(model(expected), expected, alpha=getattr(sampler, "alpha", 0.0))
            np.testing.assert_allclose(found["scores"], scores.scores, rtol=1e-4)


@pytest.mark.parametrize(
    "settings", [{}, {"position": "learned", "max_length": 6, "dtype": "bfloat16"}], ids=str
)
def test_defaults_are_those_of_generate(settings, eager_searches, eager_functions):
    model = make_model(**settings)
    module = LanguageModule(model)
    for prompts in (PROMPTS, PROMPTS[:1, :1]):
        found = module.generate(prompts=tf.constant(prompts))
        expected = model.generate(prompts, jit_compile=False)
        np.testing.assert_array_equal(found["ids"], expected)
        np.testing.assert_array_equal(found["lengths"], (expected != 0).sum(1))
    assert expected.shape[1] == settings.get("max_length", 51)


def test_seeds_change_the_outputs(eager_functions):
    module = shared_module("top_p")
    prompts = tf.zeros([8, 0], tf.int32)
    one, other, again = (
        module.generate(prompts=prompts, seed=tf.constant(seed))["ids"].numpy()
        for seed in (1, 2, 1)
    )
    assert (one != other).any()
    np.testing.assert_array_equal(one, again)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "position": "relative_v2",
            "share_heads": False,
            "use_value_table": False,
            "num_decoder_layers": 1,
        },
        pytest.param(
            {"position": "relative", "key_dim": 5, "value_dim": 3}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"position": "learned", "max_length": LENGTH, "tie_embeddings": False},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["relative_v2", "relative", "learned"],
)
def test_saved_model_of_other_architectures(settings, tmp_path):
    model = make_model(**settings)
    module = make_module(model, sampler="greedy")
    path = export.export(module, tmp_path / "model")
    signatures = tf.saved_model.load(str(path)).signatures
    assert set(signatures) == {"generate", "score"}
    found = signatures["generate"](prompts=PROMPTS)["ids"]
    np.testing.assert_array_equal(found, generated(model, PROMPTS, GreedySampler()))
    ids = np.array([[5, 6, 7, 1], [3, 1, 0, 0]], "int32")
    found, expected = signatures["score"](ids=ids), score_tokens(model(ids), ids)
    np.testing.assert_allclose(found["token_scores"], expected.token_scores, atol=1e-5)
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-5)
    assert found["lengths"].numpy().tolist() == [4, 2]
    assert len(list(tf.data.TFRecordDataset(str(path / warmup.WARMUP_FILE)))) == 2


def test_empty_batches():
    module = shared_module("beam")
    found = module.generate(prompts=tf.zeros([0, 2], tf.int32))
    assert {name: value.shape.as_list() for name, value in found.items()} == {
        "ids": [0, LENGTH],
        "scores": [0],
        "lengths": [0],
    }
    assert module.score(ids=tf.zeros([0, 4], tf.int32))["token_scores"].shape == (0, 4)
    assert module.score(ids=tf.zeros([2, 0], tf.int32))["scores"].numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[5, 13]], "Expected ids from 0 to 12. Received: ids from 5 to 13."),
        ([[0] * 12], "Expected at most 11 ids, the max_length of this export. Received: 12."),
        ([[3, 4, 5], [3, 0, 4]], "Received: ids after them in prompt 1."),
        ([[1, 4]], "Expected prompts without ids after padding .0. or after 1"),
    ],
)
def test_invalid_prompts_raise(prompts, message):
    module = shared_module("beam")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        module.generate(prompts=tf.constant(prompts))


def test_scores_have_no_limit_except_learned_positions(eager_functions):
    ids = np.random.default_rng(1).integers(2, V, (2, LENGTH + 5)).astype("int32")
    found = shared_module("beam").score(ids=ids)
    expected = score_tokens(shared_model()(ids), ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)
    module = make_module(make_model("learned", max_length=LENGTH))
    message = "Expected at most 11 ids, the number of learned positions. Received: 16."
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        module.score(ids=ids)


def test_module_must_fit_the_model():
    model = make_model("learned", max_length=8)
    with pytest.raises(ValueError, match="Expected max_length of at most 8, .* Received: 11"):
        make_module(model)
    # The length then depends on the prompt: see `test_defaults_are_those_of_generate`.
    assert LanguageModule(model).max_length is None
