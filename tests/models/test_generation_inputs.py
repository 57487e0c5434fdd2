"""Tests of `generate` with prompts, lengths and samplers that it does not support."""

import keras
import numpy as np
import pytest

from t2t_relpos.decoding import BeamSampler, GreedySampler
from t2t_relpos.models import CausalLM, Transformer

SOURCE = np.array([[5, 7, 9, 2, 3, 4, 6, 8, 1], [3, 1, 0, 0, 0, 0, 0, 0, 0]])
SMALL = {"vocab_size": 11, "num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16}


@pytest.fixture(scope="module")
def language_model():
    keras.utils.set_random_seed(7)
    return CausalLM(11, 1, 6, 13, 2, max_relative_position=3)


@pytest.mark.parametrize(
    "source, received",
    [
        ([[5, 7, 9], [0, 5, 7]], r"prompt 1 is \[0, 5, 7\]"),
        ([[5, 0, 7], [5, 7, 9]], r"prompt 0 is \[5, 0, 7\]"),
        ([[5, 1, 7], [5, 7, 9]], r"prompt 0 is \[5, 1, 7\]"),
        ([[5, 1, 1], [5, 7, 9]], r"prompt 0 is \[5, 1, 1\]"),
    ],
)
def test_causal_lm_rejects_ids_after_padding_or_the_end(language_model, source, received):
    message = rf"padding \(0\) at their end only, and nothing .* after id 1.* Received: {received}"
    with pytest.raises(ValueError, match=message):
        language_model.generate(np.array(source), max_length=9)


def test_causal_lm_continues_padded_and_finished_prompts(language_model):
    source = np.array([[5, 7, 9], [5, 0, 0], [5, 1, 0], [0, 0, 0]])
    outputs = language_model.generate(source, "greedy", max_length=6)
    alone = language_model.generate(source[1:2, :1], "greedy", max_length=6)
    assert outputs[0, :3].tolist() == [5, 7, 9]
    np.testing.assert_array_equal(outputs[1], alone[0])
    assert outputs[2].tolist() == [5, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_generate_with_learned_positions_checks_and_caps_lengths(dtype):
    settings = {**SMALL, "position": "learned", "max_length": 12}
    model = Transformer.from_preset("tiny", **settings)
    if dtype != "float32":
        model = Transformer(model.config, dtype=dtype)
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


def test_generate_rejects_a_sampler_with_an_unhashable_attribute(language_model):
    class Filtered(GreedySampler):
        def __init__(self):
            super().__init__()
            self.banned = [3, 5]

    message = "hashable attributes of a sampler, .* Received: Filtered.banned is a list. Use a"
    with pytest.raises(ValueError, match=message):
        language_model.generate(SOURCE[:1, :2], Filtered(), max_length=4)


def test_generate_does_not_record_gradients_on_torch(language_model):
    if keras.backend.backend() != "torch":
        pytest.skip("The other backends record gradients only on request.")
    import torch

    recorded = []

    class Recorder(GreedySampler):
        def search(self, *arguments):
            recorded.append(torch.is_grad_enabled())
            return super().search(*arguments)

    language_model.generate(SOURCE[:1, :2], Recorder(), max_length=4)
    assert recorded == [False]


def test_generate_pads_results_that_did_not_finish(language_model):
    # Within one more id, only one output ends.
    sampler = BeamSampler(num_beams=6, num_results=3)
    outputs = language_model.generate(SOURCE[:1, :2], sampler, max_length=3)
    assert outputs.shape == (1, 3, 3)
    assert outputs[0, 0].tolist() == [5, 7, 1]
    assert outputs[0, 1:].tolist() == [[0, 0, 0], [0, 0, 0]]
