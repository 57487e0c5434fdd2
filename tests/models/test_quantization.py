"""Tests quantized models: saved files, and searches that were compiled before."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import FeedForward
from t2t_relpos.models import CausalLM, Transformer

IDS = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [8, 8, 4, 1, 0]])

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")


@pytest.fixture(autouse=True)
def frozen_objects():
    """Hides the objects of other tests from the garbage collector: `quantize` calls it often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def make_transformer(**settings):
    small = {"num_encoder_layers": 1, "num_decoder_layers": 2, "vocab_size": 11, "hidden_dim": 16}
    return Transformer.from_preset("tiny", **small | settings)


def make_causal_lm(**kwargs):
    return CausalLM(11, 2, 16, 13, 2, max_relative_position=3, **kwargs)


def outputs_of(model):
    inputs = IDS if isinstance(model, CausalLM) else {"inputs": IDS, "targets": IDS[:, :4]}
    return ops.convert_to_numpy(model(inputs))


@pytest.mark.parametrize(
    "make",
    [
        make_transformer,
        lambda: make_transformer(tie_embeddings=False, position="learned"),
        lambda: make_causal_lm(dtype="mixed_bfloat16", name="mine"),
    ],
    ids=["transformer", "untied", "causal_lm"],
)
def test_quantized_model_saves_and_loads(make, tmp_path):
    model = make()
    before = outputs_of(model)
    model.quantize("int8")
    expected = outputs_of(model)
    np.testing.assert_allclose(expected, before, atol=0.05 * np.abs(before).max())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [v.dtype for v in loaded.variables] == [v.dtype for v in model.variables]
    np.testing.assert_array_equal(outputs_of(loaded), expected)
    loaded.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    np.testing.assert_array_equal(outputs_of(again), expected)


def check_generate(model, before):
    """Checks that `generate` uses the current variables, and that they change its outputs."""
    after = generate(model)
    model._searches.functions.clear()
    np.testing.assert_array_equal(after, generate(model))
    assert not np.array_equal(before, after)


def generate(model):
    return model.generate(IDS[:, :2], "greedy", max_length=9, jit_compile=False)


def test_generate_uses_weights_that_were_quantized_after_the_last_call():
    model = make_transformer()
    before = generate(model)
    model.quantize("int8")
    for variable in model.variables:
        if variable.dtype == "int8":
            variable.assign(np.flip(ops.convert_to_numpy(variable), axis=0))
    check_generate(model, before)


def test_generate_uses_lora_that_was_enabled_after_the_last_call(rng):
    model = make_causal_lm()
    before = generate(model)
    inner = model.blocks[0].feed_forward.inner
    inner.enable_lora(2)
    inner.lora_kernel_b.assign(99 * rng.normal(size=inner.lora_kernel_b.shape))
    check_generate(model, before)


def test_quantized_feed_forward_saves_and_loads(tmp_path, rng):
    inputs = keras.Input((7, 6))
    model = keras.Model(inputs, FeedForward(11)(inputs))
    x = rng.normal(size=(3, 7, 6)).astype("float32")
    model.quantize("int8")
    expected = ops.convert_to_numpy(model(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), expected)
