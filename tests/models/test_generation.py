"""Compares `generate` of both models with direct calls of the searches, on every backend."""

import keras
import numpy as np
import pytest
from compilation import compile_function
from keras import ops

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    TopKSampler,
    TopPSampler,
    beam_search,
    greedy_search,
    sample_search,
)
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig
from t2t_relpos.models.folded import can_fold

SOURCE = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [8, 8, 4, 1, 0]])
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 2}


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return Transformer.from_preset("tiny", vocab_size=11, **SMALL)


@pytest.fixture(scope="module")
def language_model():
    keras.utils.set_random_seed(7)
    return CausalLM(
        vocab_size=11,
        num_layers=2,
        hidden_dim=6,
        intermediate_dim=13,
        num_heads=2,
        max_relative_position=3,
    )


def search_ids(model, search, **settings):
    """Returns the ids that `search` finds for `SOURCE`."""
    state = model.encode(ops.cast(SOURCE, "int32"), 7)
    return ops.convert_to_numpy(search(model.step, state, 3, 7, **settings).ids)


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample_search])
@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("fixture", ["model", "language_model"])
def test_searches_reject_a_state_for_fewer_steps(fixture, search, compiles, request):
    step_model = request.getfixturevalue(fixture)

    def run(ids, **arguments):
        state = step_model.encode(ids, 4)
        return search(step_model.step, state, 3, 5, **arguments).scores

    ids = ops.cast(SOURCE, "int32")
    message = (
        "Expected a state with room for max_length=5 steps. Received: room for 4. Pass max_length=5"
        " to `encode`, or max_length=4 to the search."
    )
    with pytest.raises(ValueError, match=message):
        (compile_function(run) if compiles else run)(ids)
    # The limits of sentences may fit.
    assert np.isfinite(ops.convert_to_numpy(run(ids, length_limit=np.full(3, 4)))).all()


def test_generate_with_beam_sampler_equals_beam_search(model):
    np.testing.assert_array_equal(
        model.generate(SOURCE, max_length=7), search_ids(model, beam_search)[:, 0]
    )
    several = model.generate(
        SOURCE, sampler=BeamSampler(num_beams=3, alpha=0.0, num_results=2), max_length=7
    )
    expected = search_ids(model, beam_search, beam_size=3, alpha=0.0, num_results=2)
    np.testing.assert_array_equal(several, expected)


def test_generate_with_greedy_sampler_equals_greedy_search(model):
    expected = search_ids(model, greedy_search, no_repeat_ngram_size=2)[:, 0]
    sampler = GreedySampler(no_repeat_ngram_size=2)
    np.testing.assert_array_equal(model.generate(SOURCE, sampler, max_length=7), expected)


@pytest.mark.parametrize(
    "sampler, filters",
    [
        (lambda: TopKSampler(k=3, temperature=2.0, seed=5, num_results=2), {"top_k": 3}),
        (lambda: TopPSampler(p=0.9, temperature=2.0, seed=5, num_results=2), {"top_p": 0.9}),
    ],
)
def test_generate_with_random_sampler_equals_sample_search(model, sampler, filters):
    uniform = sampler().random_numbers(3, 7)
    settings = {"temperature": 2.0, "num_results": 2, "uniform": uniform}
    expected = search_ids(model, sample_search, **settings, **filters)
    first = sampler()
    np.testing.assert_array_equal(model.generate(SOURCE, first, max_length=7), expected)
    # The next call draws new random numbers.
    assert not np.array_equal(model.generate(SOURCE, first, max_length=7), expected)


def test_generate_compiles_a_search_once(model):
    count = len(model._searches.functions)
    for seed in (1, 2):
        model.generate(SOURCE, TopKSampler(k=4, seed=seed), max_length=5)
    assert len(model._searches.functions) == count + 1


def test_generate_compiles_once_for_similar_lengths(model):
    count = len(model._searches.functions)
    sampler = BeamSampler(num_beams=3)
    for length in (3, 4, 5):
        outputs = model.generate(SOURCE[:, :length], sampler)
        assert outputs.shape == (3, length + 50)
    compiled = keras.backend.backend() != "torch"
    assert len(model._searches.functions) == count + (1 if compiled else 3)


@pytest.mark.parametrize("sampler", ["beam", "greedy"])
def test_generate_without_jit_compile_is_equal(model, sampler):
    expected = model.generate(SOURCE, sampler, max_length=9)
    outputs = model.generate(SOURCE, sampler, max_length=9, jit_compile=False)
    np.testing.assert_array_equal(outputs, expected)


def test_generate_rejects_jit_compile_on_torch(model):
    if keras.backend.backend() != "torch":
        pytest.skip("The other backends compile.")
    with pytest.raises(ValueError, match="to be False or .auto. on PyTorch. Received: True"):
        model.generate(SOURCE, jit_compile=True)


def test_generate_in_bfloat16_searches_with_the_unfolded_model():
    config = TransformerConfig.from_preset("tiny", vocab_size=11, **SMALL)
    model = Transformer(config, dtype="mixed_bfloat16")
    assert not can_fold(model)
    found = model.generate(SOURCE, max_length=7, jit_compile=False)
    np.testing.assert_array_equal(found, search_ids(model, beam_search)[:, 0])
    # XLA rounds to bfloat16 less often, so a compiled search may select other ids.
    assert model.generate(SOURCE, max_length=7).shape == (3, 7)


def test_generate_uses_the_current_weights(model):
    before = model.generate(SOURCE, "greedy", max_length=7)
    weights = model.get_weights()
    model.set_weights([w[::-1] for w in weights])
    after = model.generate(SOURCE, "greedy", max_length=7)
    expected = search_ids(model, greedy_search)[:, 0]
    model.set_weights(weights)
    np.testing.assert_array_equal(after, expected)
    assert not np.array_equal(before, after)


def test_generate_default_max_length(model):
    expected = model.generate(SOURCE[:1], "greedy", max_length=SOURCE.shape[1] + 50)
    np.testing.assert_array_equal(model.generate(SOURCE[:1], "greedy"), expected)


def test_causal_lm_steps_equal_the_full_call(language_model, rng):
    ids = rng.integers(2, 11, (3, 7))
    full = ops.convert_to_numpy(language_model(ids))
    state = language_model.encode(ids, 7)
    for t in range(7):
        previous = ids[:, t - 1] if t else np.zeros(3, "int32")
        logits, state = language_model.step(previous, state)
        np.testing.assert_allclose(logits, full[:, t], atol=1e-4)


def test_causal_lm_generate_continues_the_source(language_model):
    source = np.array([[5, 7, 9], [3, 4, 0]])
    outputs = language_model.generate(source, "greedy", max_length=9)
    assert outputs.shape == (2, 9)
    for row, length in ((0, 3), (1, 2)):
        np.testing.assert_array_equal(outputs[row, :length], source[row, :length])
        logits = ops.convert_to_numpy(language_model(outputs[row : row + 1]))[0]
        logits[:, 0] = -np.inf
        end = int((outputs[row] != 0).sum())
        np.testing.assert_array_equal(logits.argmax(-1)[length:end], outputs[row, length:end])


def test_causal_lm_saves_and_loads(language_model, tmp_path):
    language_model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(SOURCE), language_model(SOURCE), atol=1e-6)
    np.testing.assert_array_equal(
        loaded.generate(SOURCE[:, :2], max_length=7),
        language_model.generate(SOURCE[:, :2], max_length=7),
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"source": SOURCE[0]}, r"of shape \[batch, length\]. Received: shape \(5,\)."),
        ({"source": SOURCE * 1.0}, "Expected token ids of an integer dtype. Received: dtype float"),
        ({"source": SOURCE + 9}, r"Expected token ids in \[0, 11\).*Received: ids from 9 to 18"),
        (
            {"source": SOURCE, "max_length": 0},
            "to be a positive integer. Received: max_length=0",
        ),
        (
            {"source": SOURCE, "max_length": 3},
            "at least 5, because .* the 5 ids of `source`. Received: 3",
        ),
        (
            {"source": SOURCE, "sampler": "best"},
            "Expected `sampler` to be one of 'beam', 'greedy', 'top_k', 'top_p', or a Sampler",
        ),
        (
            {"source": SOURCE, "sampler": GreedySampler(min_length=9), "max_length": 8},
            "at least the sampler's `min_length`. Received: max_length=8, min_length=9.",
        ),
        (
            {"source": {"inputs": SOURCE}},
            r"of shape \[batch, length\]. Received: a dict. Pass the ids of the source only.",
        ),
        (
            {"source": [[5, 7], [3]]},
            r"padded with 0. Received: a list that can't be .*pad_sequences\(source, padding=",
        ),
    ],
)
def test_generate_rejects_invalid_arguments(language_model, arguments, message):
    with pytest.raises(ValueError, match=message):
        language_model.generate(**arguments)


@pytest.mark.parametrize(
    "sampler, arguments, message",
    [
        (TopPSampler, {"p": 1.5}, "Expected `p` above 0 and at most 1. Received: 1.5"),
        (TopPSampler, {"k": 0}, "Expected `k` to be a positive integer. Received: k=0"),
        (TopKSampler, {"k": 2.5}, "Expected `k` to be a positive integer. Received: k=2.5"),
        (
            TopKSampler,
            {"temperature": 0.0},
            "above 0. .* use GreedySampler. Received: 0.0",
        ),
        (
            TopKSampler,
            {"num_results": 0},
            "Expected `num_results` to be a positive integer.",
        ),
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


def test_samplers_reject_unknown_arguments():
    message = r"BeamSampler.__init__\(\) got an unexpected keyword argument 'beam_size'"
    with pytest.raises(TypeError, match=message):
        BeamSampler(beam_size=3)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ((SOURCE, SOURCE), "the keys 'inputs' .B, S. and 'targets' .B, T.. Received: tuple."),
        ({"inputs": SOURCE, "target": SOURCE}, r"Received: keys \['inputs', 'target'\]."),
        (
            {"inputs": SOURCE[0], "targets": SOURCE},
            r"Expected `inputs\['inputs'\]` to be a tensor of int ids \[B, S\]. Received: shape "
            r"\(5,\). For a single sequence, pass a batch of one.",
        ),
        (
            {"inputs": SOURCE, "targets": SOURCE[None]},
            r"`inputs\['targets'\]` to be .* \[B, T\]. Received: shape \(1, 3, 5\).",
        ),
        (
            {"inputs": SOURCE, "targets": SOURCE[:1]},
            "Expected 'inputs' and 'targets' of the same batch size. Received: batch sizes 3 and 1",
        ),
    ],
)
def test_transformer_rejects_invalid_inputs(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        model(inputs)


@pytest.mark.parametrize("layer", [2, -1, "x"])
def test_logits_and_attention_rejects_an_invalid_layer(model, layer):
    message = f"Expected `attention_layer` to be None or an int from 0 to 1. Received: {layer!r}."
    with pytest.raises(ValueError, match=message):
        model.logits_and_attention({"inputs": SOURCE, "targets": SOURCE}, attention_layer=layer)


@pytest.mark.parametrize(
    "ids, message",
    [
        (
            {"ids": SOURCE},
            r"Expected `ids` to be a tensor of int ids \[B, T\]. Received: dict. Pass the tensor",
        ),
        ((SOURCE, SOURCE), "Received: tuple. Pass the tensor itself."),
        (SOURCE[0], r"Received: shape \(5,\). For a single sequence, pass a batch of one."),
        (SOURCE[None], r"Received: shape \(1, 3, 5\)."),
        (SOURCE * 1.0, "Expected token ids of an integer dtype. Received: dtype float32. Cast"),
    ],
)
def test_causal_lm_rejects_invalid_ids(language_model, ids, message):
    with pytest.raises(ValueError, match=message):
        language_model(ids)


def test_transformer_summary_shows_shapes(model, capsys):
    model({"inputs": SOURCE, "targets": SOURCE})
    model.summary()
    text = capsys.readouterr().out
    assert "(None, None, 128)" in text
    assert "?" not in text
