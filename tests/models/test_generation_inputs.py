"""Tests of the arguments of `generate`, which runs searches eagerly here, and of samplers."""

import keras
import numpy as np
import pytest
from compilation import compile_function
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
from t2t_relpos.models import Transformer
from t2t_relpos.models.folded import can_fold

SOURCE = np.array([[5, 7, 9, 2, 3, 4, 6, 8, 1], [3, 1, 0, 0, 0, 0, 0, 0, 0]])

pytestmark = pytest.mark.usefixtures("eager_searches")


@pytest.fixture(scope="module")
def model():
    return random_transformer(0.5, vocab_size=11)


@pytest.fixture(scope="module")
def language_model():
    return small_causal_lm()


@pytest.mark.parametrize(
    "search, fixture, compiles",
    [
        (beam_search, "model", False),
        (beam_search, "language_model", True),
        (greedy_search, "language_model", False),
        (sample_search, "model", True),
    ],
)
def test_searches_reject_a_state_for_fewer_steps(search, fixture, compiles, request):
    step_model = request.getfixturevalue(fixture)

    def run(ids, **arguments):
        state = step_model.encode(ids, 4)
        return search(step_model.step, state, 2, 5, **arguments).scores

    ids = ops.cast(SOURCE, "int32")
    message = (
        "Expected a state with room for max_length=5 steps. Received: room for 4. Pass max_length=5"
        " to `encode`, or max_length=4 to the search."
    )
    with pytest.raises(ValueError, match=message):
        (compile_function(run) if compiles else run)(ids)
    # The limits of sentences may fit.
    assert np.isfinite(ops.convert_to_numpy(run(ids, length_limit=np.full(2, 4)))).all()


@pytest.mark.parametrize("sampler, search", [("beam", beam_search), ("greedy", greedy_search)])
def test_generate_with_a_default_sampler_equals_the_search(model, sampler, search):
    expected = search_ids(model, search, SOURCE, 7)
    np.testing.assert_array_equal(model.generate(SOURCE, sampler, max_length=7), expected)


def test_generate_with_top_p_sampler_equals_sample_search(model):
    settings = {"temperature": 2.0, "num_results": 2}
    sampler, same = (TopPSampler(0.9, seed=5, **settings) for _ in range(2))
    uniform = same.random_numbers(2, 7)
    expected = search_ids(model, sample_search, SOURCE, 7, top_p=0.9, uniform=uniform, **settings)
    np.testing.assert_array_equal(model.generate(SOURCE, sampler, max_length=7), expected)


def test_generate_makes_one_search_for_similar_lengths(model):
    count = len(model._searches.functions)
    for length in (6, 7, 8):
        outputs = model.generate(SOURCE[:, :length], "greedy")
        assert outputs.shape == (2, length + 50)
    compiled = keras.backend.backend() != "torch"
    assert len(model._searches.functions) == count + (1 if compiled else 3)
    expected = model.generate(SOURCE[:, :8], "greedy", max_length=58, jit_compile=False)
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_generate_with_learned_positions_checks_and_caps_lengths(dtype):
    float32_model = random_transformer(0.5, vocab_size=11, position="learned", max_length=12)
    model = Transformer(float32_model.config, dtype=dtype)
    model.set_weights(float32_model.get_weights())
    # Searches use the unfolded model in bfloat16.
    assert can_fold(model) == (dtype == "float32")
    expected = search_ids(model, beam_search, SOURCE, 7)
    np.testing.assert_array_equal(model.generate(SOURCE, max_length=7), expected)
    # The next sizes would be 16 for the source and 66 for the output.
    outputs = model.generate(SOURCE, "greedy")
    assert outputs.shape == (2, 12)
    expected = model.generate(SOURCE, "greedy", max_length=12, jit_compile=False)
    np.testing.assert_array_equal(outputs, expected)
    message = "at most 12 ids, the learned positions of the model. Received: sources of {} ids, "
    with pytest.raises(ValueError, match=message.format(9) + "max_length=13. Pass a smaller"):
        model.generate(SOURCE, max_length=13)
    with pytest.raises(ValueError, match=message.format(18) + "max_length=7."):
        model.generate(np.repeat(SOURCE, 2, axis=1), max_length=7)


def test_causal_lm_continues_padded_and_finished_prompts(language_model):
    source = np.array([[5, 7, 9], [5, 0, 0], [5, 1, 0], [0, 0, 0]])
    outputs = language_model.generate(source, "greedy", max_length=6)
    alone = language_model.generate(source[1:2, :1], "greedy", max_length=6)
    assert outputs[0, :3].tolist() == [5, 7, 9]
    np.testing.assert_array_equal(outputs[1], alone[0])
    assert outputs[2].tolist() == [5, 1, 0, 0, 0, 0]


def test_generate_pads_results_that_did_not_finish(language_model):
    # Within one more id, only one output ends.
    sampler = BeamSampler(num_beams=6, num_results=3)
    outputs = language_model.generate(SOURCE[:1, :2], sampler, max_length=3)
    assert outputs.tolist() == [[[5, 7, 1], [0, 0, 0], [0, 0, 0]]]


class Filtered(GreedySampler):
    """A sampler with an attribute that is not hashable."""

    def __init__(self):
        super().__init__()
        self.banned = [3, 5]


PROMPTS = r"padding \(0\) at their end only, and nothing .* after id 1.* Received: prompt {}"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"source": SOURCE[0]}, r"of shape \[batch, length\]. Received: shape \(9,\)."),
        ({"source": SOURCE * 1.0}, "Expected token ids of an integer dtype. Received: dtype float"),
        ({"source": SOURCE + 9}, r"Expected token ids in \[0, 11\).*Received: ids from 9 to 18"),
        ({"max_length": 0}, "to be a positive integer. Received: max_length=0"),
        ({"max_length": 3}, "at least 9, because .* the 9 ids of `source`. Received: 3"),
        (
            {"sampler": "best"},
            "Expected `sampler` to be one of 'beam', 'greedy', 'top_k', 'top_p', or a Sampler",
        ),
        (
            {"sampler": GreedySampler(min_length=11), "max_length": 10},
            "at least the sampler's `min_length`. Received: max_length=10, min_length=11.",
        ),
        (
            {"sampler": Filtered()},
            "hashable attributes of a sampler, .* Received: Filtered.banned is a list. Use a",
        ),
        (
            {"source": {"inputs": SOURCE}},
            r"of shape \[batch, length\]. Received: a dict. Pass the ids of the source only.",
        ),
        (
            {"source": [[5, 7], [3]]},
            r"padded with 0. Received: a list that can't be .*pad_sequences\(source, padding=",
        ),
        ({"source": [[5, 7, 9], [0, 5, 7]]}, PROMPTS.format(r"1 is \[0, 5, 7\]")),
        ({"source": [[5, 0, 7], [5, 7, 9]]}, PROMPTS.format(r"0 is \[5, 0, 7\]")),
        ({"source": [[5, 1, 1], [5, 7, 9]]}, PROMPTS.format(r"0 is \[5, 1, 1\]")),
    ],
)
def test_generate_rejects_invalid_arguments(language_model, arguments, message):
    with pytest.raises(ValueError, match=message):
        language_model.generate(**{"source": SOURCE} | arguments)


def test_generate_rejects_jit_compile_on_torch(model):
    if keras.backend.backend() != "torch":
        pytest.skip("The other backends compile.")
    with pytest.raises(ValueError, match="to be False or .auto. on PyTorch. Received: True"):
        model.generate(SOURCE, jit_compile=True)


@pytest.mark.parametrize(
    "sampler, arguments, message",
    [
        (TopPSampler, {"p": 1.5}, "Expected `p` above 0 and at most 1. Received: 1.5"),
        (TopPSampler, {"k": 0}, "Expected `k` to be a positive integer. Received: k=0"),
        (TopKSampler, {"k": 2.5}, "Expected `k` to be a positive integer. Received: k=2.5"),
        (TopKSampler, {"temperature": 0.0}, "above 0. .* use GreedySampler. Received: 0.0"),
        (TopKSampler, {"num_results": 0}, "Expected `num_results` to be a positive integer."),
        (BeamSampler, {"num_beams": 0}, "Expected `num_beams` to be a positive integer."),
        (
            BeamSampler,
            {"num_beams": 3, "num_results": 5},
            "Expected `num_results` to be at most `num_beams`, 3. Received: 5",
        ),
    ],
)
def test_samplers_reject_invalid_settings(sampler, arguments, message):
    with pytest.raises(ValueError, match=message):
        sampler(**arguments)


def test_causal_lm_steps_equal_the_full_call(language_model, rng):
    ids = rng.integers(2, 11, (3, 7))
    full = ops.convert_to_numpy(language_model(ids))
    state = language_model.encode(ids, 7)
    for t in range(7):
        previous = ids[:, t - 1] if t else np.zeros(3, "int32")
        logits, state = language_model.step(previous, state)
        np.testing.assert_allclose(logits, full[:, t], atol=1e-4)


@pytest.mark.parametrize(
    "ids, message",
    [
        (
            {"ids": SOURCE},
            r"Expected `ids` to be a tensor of int ids \[B, T\]. Received: dict. Pass the tensor",
        ),
        (SOURCE[0], r"Received: shape \(9,\). For a single sequence, pass a batch of one."),
    ],
)
def test_causal_lm_rejects_invalid_ids(language_model, ids, message):
    with pytest.raises(ValueError, match=message):
        language_model(ids)
