"""Tests of the arguments of `generate`, which runs searches eagerly here."""

import keras
import numpy as np
import pytest
from compilation import compile_function
from keras import ops
from small_transformers import random_transformer, search_ids, small_causal_lm

from t2t_relpos.decoding import (
    GreedySampler,
    TopPSampler,
    beam_search,
    greedy_search,
    sample_search,
)
from t2t_relpos.models import Transformer, generation
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


def test_generate_with_top_p_sampler_equals_sample_search(model):
    settings = {"temperature": 2.0, "num_results": 2}
    sampler, same = (TopPSampler(0.9, seed=5, **settings) for _ in range(2))
    uniform = same.random_numbers(2, 7)
    expected = search_ids(model, sample_search, SOURCE, 7, top_p=0.9, uniform=uniform, **settings)
    np.testing.assert_array_equal(model.generate(SOURCE, sampler, max_length=7), expected)


@pytest.mark.parametrize("fixture, name", [("model", "beam"), ("language_model", "greedy")])
def test_default_sampler(fixture, name, request):
    default_model = request.getfixturevalue(fixture)
    count = len(default_model._searches.functions)
    found, expected = (
        default_model.generate(SOURCE[:, :2], max_length=6, **sampler)
        for sampler in ({}, {"sampler": name})
    )
    np.testing.assert_array_equal(found, expected)
    # Another sampler would be another search.
    assert len(default_model._searches.functions) == count + 1


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


class OwnEnds(GreedySampler):
    """A sampler with a sampler as an attribute."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def search(self, *arguments, **settings):
        return self.inner.search(*arguments, **settings)


@pytest.mark.parametrize("wrap", [lambda sampler: sampler, OwnEnds])
def test_a_search_does_not_change_with_the_attributes_of_a_sampler(language_model, wrap):
    """The first call compiles for another shape, so that the second one traces the search again."""
    prompts = np.tile([[5, 7, 9]], (4, 1))

    def generate(model, **settings):
        return model.generate(prompts, wrap(GreedySampler(**settings)), 8, jit_compile=False)

    expected = generate(language_model, min_length=3)
    model = small_causal_lm()
    sampler = GreedySampler(min_length=3)
    model.generate(prompts[:1], wrap(sampler), 8, jit_compile=False)
    sampler.min_length, sampler.no_repeat_ngram_size = 8, 1
    np.testing.assert_array_equal(generate(model, min_length=3), expected)
    # The changed settings apply to the object's own searches.
    changed = model.generate(prompts, wrap(sampler), 8, jit_compile=False)
    np.testing.assert_array_equal(changed, generate(model, min_length=8, no_repeat_ngram_size=1))
    assert not np.array_equal(changed, expected)


def test_generate_keeps_the_last_searches_only(language_model, monkeypatch):
    monkeypatch.setattr(generation.SearchFunctions, "LARGEST_NUMBER", 2)
    model = small_causal_lm()
    functions = []
    for max_length in (3, 4, 3, 5, 3):
        model.generate(SOURCE[:1, :2], "greedy", max_length)
        functions.append(list(model._searches.functions.values()))
    assert [len(each) for each in functions] == [1, 2, 2, 2, 2]
    # The search of length 3 was used more recently than that of length 4.
    assert functions[0][0] is functions[-1][-1]


@pytest.mark.parametrize("fixture", ["model", "language_model"])
def test_generate_ends_with_stop_token_ids(fixture, request):
    stop_model = request.getfixturevalue(fixture)
    source = np.array([[5], [7]])
    endless = stop_model.generate(source, "greedy", 9, stop_token_ids=None)
    assert (endless > 0).all()
    # The prompts of a language model may not contain them.
    excluded = {5, 7} if fixture == "language_model" else set()
    stops = tuple(sorted(set(endless[:, 3:].ravel().tolist()) - excluded))[:2]
    found = stop_model.generate(source, "greedy", 9, stop_token_ids=stops)
    assert (found == 0).any()
    for row, expected in zip(found, endless, strict=True):
        is_end = np.isin(expected, stops)
        end = int(is_end.argmax()) + 1 if is_end.any() else 9
        assert row[:end].tolist() == expected[:end].tolist() and not row[end:].any()


@pytest.mark.parametrize(
    "name, message",
    [
        ("seed", r"'seed'. Pass it to a sampler: sampler=TopPSampler\(seed=...\)"),
        ("num_beams", r"'num_beams'. Pass it to a sampler: sampler=BeamSampler\(num_beams=...\)"),
        ("min_length", r"'min_length'. Pass it to a sampler: sampler=TopPSampler\(min_"),
        ("eos_id", r"'eos_id'\.$"),
    ],
)
def test_generate_says_which_sampler_has_an_argument(language_model, name, message):
    message = rf"^generate\(\) got an unexpected keyword argument {message}"
    with pytest.raises(TypeError, match=message):
        language_model.generate(SOURCE[:, :2], **{name: 1})


class Filtered(GreedySampler):
    """A sampler with an attribute that is not hashable."""

    def __init__(self):
        super().__init__()
        self.banned = [3, 5]


PROMPTS = r"Expected prompts with padding \(0\) at their end only, .* Received: prompt {} is"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"source": SOURCE[0]},
            "Expected `source`, the prompts, to be int ids of shape .* shape .9,",
        ),
        ({"source": SOURCE * 1.0}, "Expected token ids of an integer dtype"),
        (
            {"source": SOURCE.astype(str)},
            "Expected `source`, the prompts, to be int ids .* dtype <U",
        ),
        (
            {"source": SOURCE.astype(object)},
            "Expected `source`, the prompts, to be int ids .* dtype object",
        ),
        (
            {"source": {"inputs": SOURCE}},
            "Expected `source`, the prompts, to be int ids .* a dict. Pass",
        ),
        (
            {"source": [[5, 7], [3]]},
            "Expected `source`, the prompts, to be int ids .* a list that can't be",
        ),
        ({"source": ["a text"]}, "`source`, the prompts, .* Received: text. Tokenize texts"),
        ({"source": SOURCE + 9}, r"Expected token ids in \[0, 11\)"),
        ({"max_length": 0}, "Expected `max_length` to be a positive integer"),
        ({"max_length": 3}, "Expected `max_length` of at least 9, because"),
        ({"sampler": "best"}, "Expected `sampler` to be one of 'beam', 'greedy', 'top_k', 'top_p'"),
        (
            {"sampler": GreedySampler(min_length=11), "max_length": 10},
            "Expected `max_length` of at least the sampler's `min_length`",
        ),
        ({"sampler": Filtered()}, "Expected hashable attributes of a sampler.*Filtered.banned is"),
        ({"source": [[5, 7, 9], [0, 5, 7]]}, PROMPTS.format(1)),
        ({"source": [[5, 0, 7], [5, 7, 9]]}, PROMPTS.format(0)),
        ({"source": [[5, 1, 1], [5, 7, 9]]}, PROMPTS.format(0)),
        (
            {"source": [[5, 7, 9]], "stop_token_ids": (3, 7)},
            "Expected prompts with padding .* after id 3 or 7, the end of a text",
        ),
        ({"stop_token_ids": 3}, "Expected `stop_token_ids` to be a tuple of ids"),
        ({"stop_token_ids": (11,)}, r"Expected `stop_token_ids` in \[1, 11\)"),
    ],
)
def test_generate_rejects_invalid_arguments(language_model, arguments, message):
    with pytest.raises(ValueError, match=message):
        language_model.generate(**{"source": SOURCE} | arguments)


def test_ids_may_have_any_integer_dtype(language_model):
    prompts = np.array([[5, 7, 9], [3, 2, 4]])
    expected = language_model.generate(prompts, "greedy", max_length=5)
    for dtype in ("int8", "uint16", "uint32", "uint64"):
        found = language_model.generate(prompts.astype(dtype), "greedy", max_length=5)
        np.testing.assert_array_equal(found, expected, err_msg=dtype)


def test_generate_rejects_jit_compile_on_torch(model):
    if keras.backend.backend() != "torch":
        pytest.skip("The other backends compile.")
    with pytest.raises(ValueError, match="to be False or .auto. on PyTorch. Received: True"):
        model.generate(SOURCE, jit_compile=True)


@pytest.mark.parametrize(
    "ids, message",
    [
        ({"ids": SOURCE}, r"`ids` to be a tensor or an array of shape \[B, T\]. Received: dict"),
        (SOURCE[0], r"Received: shape \(9,\). Pass one tensor. For a single sequence"),
    ],
)
def test_causal_lm_rejects_invalid_ids(language_model, ids, message):
    with pytest.raises(ValueError, match=message):
        language_model(ids)
