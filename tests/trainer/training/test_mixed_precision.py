import keras
import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_equal
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.model_dir import ModelDirectory
from trainer.training.training_model import TrainingModel

CONFIG = small_config()
BATCH = {
    "inputs": np.array([[5, 7, 3, 1, 0], [8, 1, 0, 0, 0], [4, 4, 6, 2, 1]], "int32"),
    "targets": np.array([[9, 3, 1], [2, 1, 0], [1, 0, 0]], "int32"),
}


def make_model(precision, **settings):
    keras.utils.set_random_seed(7)
    policy = precision if precision == "float32" else f"mixed_{precision}"
    model = TrainingModel(Transformer(CONFIG, dtype=policy), 0.1, device_tokens=10, clip_norm=5.0)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **settings)
    return model


def train(model, steps):
    data = tf.data.Dataset.from_tensors(BATCH).repeat()
    return model.fit(data, steps_per_epoch=1, epochs=steps, verbose=0, shuffle=False).history


@pytest.fixture(scope="module")
def float32_losses():
    return train(make_model("float32"), 6)["loss"]


@pytest.mark.parametrize("precision, rtol", [("bfloat16", 0.03), ("float16", 0.005)])
def test_mixed_precision_losses_equal_float32(float32_losses, precision, rtol):
    model = make_model(precision)
    assert model.transformer.compute_dtype == precision
    assert {variable.dtype for variable in model.transformer.trainable_variables} == {"float32"}
    losses = train(model, 6)["loss"]
    np.testing.assert_allclose(losses, float32_losses, rtol=rtol)
    assert losses[-1] < 0.6 * losses[0]


def test_mixed_precision_model_is_saved_in_float32(tmp_path):
    model = make_model("bfloat16").transformer
    directory = ModelDirectory.create(tmp_path)
    directory.write_config(CONFIG.to_dict(), tokenizer="none")
    directory.save_model(model)
    loaded = directory.load_model()
    assert {layer.compute_dtype for layer in loaded._flatten_layers()} == {"float32"}
    assert_all_equal(model.get_weights(), loaded.get_weights())
    plain = Transformer(CONFIG)
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(loaded(BATCH), plain(BATCH))


@pytest.mark.slow
def test_not_finite_update_is_skipped_and_halves_the_scale():
    model = make_model("float16")
    model.loss_scale.scale.assign(2.0**120)
    before = model.get_weights()
    history = train(model, 2)
    assert (
        history["loss_scale"] == [2.0**120, 2.0**119]
        and float(model.loss_scale.scale.value) == 2.0**118
    )
    assert np.all(np.isfinite(history["loss"])) and not np.any(
        np.isfinite(history["gradient_norm"])
    )
    assert_all_equal(before, model.get_weights())
    assert int(model.optimizer.iterations) == 2, "skipped updates are counted"
    model.loss_scale.scale.assign(2.0**10)
    assert train(model, 1)["loss_scale"] == [2.0**10]
    assert any(np.any(one != other) for one, other in zip(before, model.get_weights()))


def test_scale_doubles_after_growth_steps():
    model = make_model("float16", run_eagerly=True)
    model.loss_scale.growth_steps = 2
    assert train(model, 5)["loss_scale"] == [2.0**15, 2.0**15, 2.0**16, 2.0**16, 2.0**17]


@pytest.mark.slow
def test_xla_equals_no_xla():
    histories = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(7)
        model = TrainingModel(Transformer(CONFIG), 0.1, device_tokens=10, clip_norm=1.0)
        model.compile(keras.optimizers.SGD(1.0), jit_compile=jit_compile)
        assert model.jit_compile == jit_compile
        histories.append(train(model, 3))
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)
