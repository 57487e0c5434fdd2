"""Tests quantized models: saved files, and searches that were compiled before."""

import keras
import numpy as np
import pytest
from keras import ops
from small_transformers import search_ids

from t2t_relpos.decoding import greedy_search
from t2t_relpos.layers import FeedForward
from t2t_relpos.models import CausalLM, Transformer

IDS = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [8, 8, 4, 1, 0]])
PAIRS = {"inputs": IDS, "targets": IDS[:, :4]}

pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method"),
    pytest.mark.usefixtures("frozen_objects"),
]


def make_transformer(**settings):
    small = {"num_encoder_layers": 1, "num_decoder_layers": 1, "vocab_size": 11, "hidden_dim": 16}
    return Transformer.from_preset("tiny", **small | settings)


def make_causal_lm(**kwargs):
    return CausalLM(11, 1, 16, 13, 2, max_relative_position=3, **kwargs)


def make_feed_forward():
    inputs = keras.Input((7, 6))
    return keras.Model(inputs, FeedForward(11)(inputs))


@pytest.mark.parametrize(
    "make, inputs",
    [
        (make_transformer, PAIRS),
        (lambda: make_transformer(tie_embeddings=False, position="learned"), PAIRS),
        (lambda: make_causal_lm(dtype="mixed_bfloat16", name="mine"), IDS),
        (make_feed_forward, np.random.default_rng(7).normal(size=(3, 7, 6)).astype("float32")),
    ],
    ids=["transformer", "untied", "causal_lm", "feed_forward"],
)
def test_quantized_model_saves_and_loads(make, inputs, tmp_path):
    model = make()
    before = ops.convert_to_numpy(model(inputs))
    model.quantize("int8")
    expected = ops.convert_to_numpy(model(inputs))
    np.testing.assert_allclose(expected, before, atol=0.05 * np.abs(before).max())
    # A loaded model can be saved again.
    for name in ("model.keras", "again.keras"):
        model.save(tmp_path / name)
        loaded = keras.models.load_model(tmp_path / name)
        assert [v.dtype for v in loaded.variables] == [v.dtype for v in model.variables]
        np.testing.assert_array_equal(loaded(inputs), expected)
        model = loaded


def quantize(model):
    model.quantize("int8")
    for variable in model.variables:
        if variable.dtype == "int8":
            variable.assign(np.flip(ops.convert_to_numpy(variable), axis=0))


def enable_lora(model):
    inner = model.blocks[0].feed_forward.inner
    inner.enable_lora(2)
    kernel = np.random.default_rng(7).normal(size=inner.lora_kernel_b.shape)
    inner.lora_kernel_b.assign(99 * kernel)


@pytest.mark.parametrize(
    "make, change, settings",
    [(make_transformer, quantize, {}), (make_causal_lm, enable_lora, {"prefix": IDS[:, :2]})],
    ids=["quantize", "LoRA"],
)
def test_generate_uses_weights_that_changed_after_the_last_call(make, change, settings):
    model = make()
    generate = lambda: model.generate(IDS[:, :2], "greedy", max_length=9, jit_compile=False)
    before = generate()
    change(model)
    after = generate()
    expected = search_ids(model, greedy_search, IDS[:, :2], 9, **settings)
    np.testing.assert_array_equal(after, expected)
    assert not np.array_equal(before, after)
