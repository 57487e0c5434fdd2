"""Compares compiled searches of `generate` with direct calls of the searches, on every backend.

test_generation_inputs.py tests the arguments of `generate` without compilation.
"""

import keras
import numpy as np
import pytest
from critical_lengths import SEARCH_LENGTHS, attention_lengths
from keras import ops
from small_transformers import random_transformer, search_ids, small_causal_lm

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    TopKSampler,
    TopPSampler,
    beam_search,
    greedy_search,
    sample_search,
)
from t2t_relpos.models import CausalLM, Transformer

SOURCE = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [8, 8, 4, 1, 0]])
# Of more than 16 ids, so that a compiled search enlarges its caches.
BEAM = {"alpha": 0.0, "num_results": 2, "min_length": 17}
GREEDY = {"no_repeat_ngram_size": 2}


@pytest.fixture(scope="module")
def model():
    return random_transformer(0.5, vocab_size=11)


@pytest.fixture(scope="module")
def model_of_pair():
    distances = {"max_relative_position": (5, 2), "relative_cross_attention": True}
    return random_transformer(0.5, vocab_size=11, **distances)


@pytest.mark.parametrize("fixture, jit_compile", [("model", "auto"), ("model_of_pair", False)])
def test_generate_equals_beam_search(fixture, jit_compile, request):
    model = request.getfixturevalue(fixture)
    found = model.generate(SOURCE, BeamSampler(3, **BEAM), 18, jit_compile=jit_compile)
    np.testing.assert_array_equal(
        found, search_ids(model, beam_search, SOURCE, 18, beam_size=3, **BEAM)
    )


@pytest.mark.parametrize("jit_compile", ["auto", False])
def test_generate_equals_greedy_search_with_the_current_weights(model, jit_compile):
    generate = lambda: model.generate(SOURCE, GreedySampler(**GREEDY), 9, jit_compile=jit_compile)
    before = generate()
    np.testing.assert_array_equal(before, search_ids(model, greedy_search, SOURCE, 9, **GREEDY))
    weights = model.get_weights()
    model.set_weights([w[::-1] for w in weights])
    after, expected = generate(), search_ids(model, greedy_search, SOURCE, 9, **GREEDY)
    model.set_weights(weights)
    np.testing.assert_array_equal(after, expected)
    assert not np.array_equal(before, after)


def test_generate_compiles_a_search_once_for_all_seeds(model, eager_searches):
    count = len(model._searches.functions)
    settings = {"temperature": 2.0, "num_results": 2}
    for seed in (1, 2):
        sampler, same = (TopKSampler(3, seed=seed, **settings) for _ in range(2))
        uniform = same.random_numbers(3, 7)
        expected = search_ids(model, sample_search, SOURCE, 7, top_k=3, uniform=uniform, **settings)
        np.testing.assert_array_equal(model.generate(SOURCE, sampler, 7), expected)
        # The next call draws new random numbers.
        assert not np.array_equal(model.generate(SOURCE, sampler, 7), expected)
    assert len(model._searches.functions) == count + 1


def test_eager_functions_return_the_results_of_compiled_ones(model, tf):
    """Three sentences are padded to four. The last one is done at the start."""
    sampler = BeamSampler(3, **BEAM)  # compiled by another test
    expected = model.generate(SOURCE, sampler, 18)
    tf.config.run_functions_eagerly(True)
    try:
        found = model.generate(SOURCE, sampler, 18)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(found, expected)


def test_generate_in_bfloat16_compiles_the_unfolded_model(model):
    half = Transformer(model.config, dtype="mixed_bfloat16")
    # XLA rounds to bfloat16 less often, so a compiled search may select other ids.
    assert half.generate(SOURCE, "greedy", max_length=3).shape == (3, 3)


# Functions, because samplers that draw continue their sequence of random numbers. "random" draws
# from all ids.
SAMPLERS = {
    "beam": lambda: BeamSampler(3),
    "greedy": GreedySampler,
    "top_k": lambda: TopKSampler(3, seed=1),
    "top_p": lambda: TopPSampler(0.9, seed=1),
    "random": lambda: TopKSampler(11, seed=1),
}
PROMPTS = np.array([[5, 7, 9], [3, 4, 0]])


@pytest.fixture(scope="module")
def language_model():
    return small_causal_lm()


def uncompiled_search(model, source, sampler, max_length, **stop_arguments):
    """Returns the ids of a search with the model's own steps: not compiled, weights not folded."""
    uniform = sampler.random_numbers(len(source), max_length)
    prefix = source if isinstance(model, CausalLM) else None
    source = ops.cast(source, "int32")
    state, arguments = model.encode(source, max_length), (len(source), max_length, uniform, prefix)
    return ops.convert_to_numpy(sampler.search(model.step, state, *arguments, **stop_arguments).ids)


MODELS = [("model", SOURCE), ("language_model", PROMPTS)]


@pytest.mark.slow
@pytest.mark.parametrize("fixture, source", MODELS)
@pytest.mark.parametrize("length", [None, *SEARCH_LENGTHS])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_compiled_searches_equal_uncompiled_ones(fixture, source, sampler, length, request):
    """Nothing ends outputs, so that searches take all steps. `None` is the default length."""
    model, make_sampler = request.getfixturevalue(fixture), SAMPLERS[sampler]
    found = model.generate(source, make_sampler(), length, stop_token_ids=None)
    length = length or source.shape[1] + 50
    assert found.shape == (len(source), length) and (found > 0).all()
    expected = uncompiled_search(model, source, make_sampler(), length, stop_token_ids=())
    np.testing.assert_array_equal(found, expected[:, 0])


def test_logits_do_not_depend_on_later_ids_at_any_length(language_model, rng):
    lengths = sorted({*SEARCH_LENGTHS, *attention_lengths(causal=True)})
    ids = rng.integers(2, 11, (1, lengths[-1] + 1))
    expected = ops.convert_to_numpy(language_model(ids))
    for length in lengths:
        found = ops.convert_to_numpy(language_model(ids[:, :length]))
        np.testing.assert_allclose(found, expected[:, :length], atol=1e-4, err_msg=str(length))


def test_generate_does_not_record_gradients_on_torch():
    if keras.backend.backend() != "torch":
        pytest.skip("The other backends record gradients only on request.")
    import torch

    recorded = []

    class Recorder(GreedySampler):
        def search(self, *arguments):
            recorded.append(torch.is_grad_enabled())
            return super().search(*arguments)

    small_causal_lm().generate(SOURCE[:1, :2], Recorder(), max_length=4)
    assert recorded == [False]
