"""Compares compiled searches of `generate` with direct calls of the searches, on every backend.

test_generation_inputs.py tests the arguments of `generate` without compilation.
"""

import keras
import numpy as np
import pytest
from keras import ops
from small_transformers import random_transformer, search_ids, small_causal_lm

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    TopKSampler,
    beam_search,
    greedy_search,
    sample_search,
)
from t2t_relpos.models import Transformer

SOURCE = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [8, 8, 4, 1, 0]])
# Of more than 16 ids, so that a compiled beam search enlarges its caches.
BEAM = {"alpha": 0.0, "num_results": 2, "min_length": 17}
GREEDY = {"no_repeat_ngram_size": 2}


@pytest.fixture(scope="module")
def model():
    return random_transformer(0.5, vocab_size=11)


@pytest.mark.parametrize("jit_compile", ["auto", False])
def test_generate_equals_beam_search(model, jit_compile):
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


def test_generate_compiles_a_search_once_for_all_seeds(model):
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
    sampler = BeamSampler(3, num_results=2)
    expected = model.generate(SOURCE, sampler, 6)
    tf.config.run_functions_eagerly(True)
    try:
        found = model.generate(SOURCE, sampler, 6)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(found, expected)


def test_generate_in_bfloat16_compiles_the_unfolded_model(model):
    half = Transformer(model.config, dtype="mixed_bfloat16")
    # XLA rounds to bfloat16 less often, so a compiled search may select other ids.
    assert half.generate(SOURCE, "greedy", max_length=7).shape == (3, 7)


def test_causal_lm_generate_continues_the_source():
    model = small_causal_lm()
    source = np.array([[5, 7, 9], [3, 4, 0]])
    outputs = model.generate(source, "greedy", max_length=9)
    assert outputs.shape == (2, 9)
    for row, length in ((0, 3), (1, 2)):
        np.testing.assert_array_equal(outputs[row, :length], source[row, :length])
        logits = ops.convert_to_numpy(model(outputs[row : row + 1]))[0]
        logits[:, 0] = -np.inf
        end = int((outputs[row] != 0).sum())
        np.testing.assert_array_equal(logits.argmax(-1)[length:end], outputs[row, length:end])


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
