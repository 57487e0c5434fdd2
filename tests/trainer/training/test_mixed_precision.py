import functools

import keras
import numpy as np
import pytest
from comparisons import assert_all_equal
from small_transformers import small_config
from tiny_training import BATCH, TinyTransformer, fit, training_model

from t2t_relpos.models import Transformer
from trainer.model_dir import ModelDirectory

CONFIG = small_config()
TRANSFORMER = functools.partial(Transformer, CONFIG)


SETTINGS = {"optimizer": functools.partial(keras.optimizers.SGD, momentum=0.9), "rate": 0.1}
SETTINGS |= {"device_tokens": 10, "clip_norm": 5.0}


def make_model(policy, transformer=TinyTransformer, **options):
    return training_model(transformer, options=options, dtype=policy, **SETTINGS)


@pytest.mark.parametrize(
    ("precision", "rtol", "transformer"),
    [
        ("bfloat16", 0.03, TinyTransformer),
        ("float16", 0.005, TinyTransformer),
        pytest.param("bfloat16", 0.03, TRANSFORMER, marks=pytest.mark.slow),
        pytest.param("float16", 0.005, TRANSFORMER, marks=pytest.mark.slow),
    ],
    ids=["bfloat16", "float16", "Transformer in bfloat16", "Transformer in float16"],
)
def test_mixed_precision_losses_equal_float32(precision, rtol, transformer):
    model = make_model(f"mixed_{precision}", transformer)
    assert model.transformer.compute_dtype == precision
    assert {variable.dtype for variable in model.transformer.trainable_variables} == {"float32"}
    losses = fit(model, steps=6)["loss"]
    expected = fit(make_model("float32", transformer), steps=6)["loss"]
    np.testing.assert_allclose(losses, expected, rtol=rtol)
    assert losses[-1] < 0.6 * losses[0]


def test_mixed_precision_model_is_saved_in_float32(tmp_path):
    keras.utils.set_random_seed(7)
    model = Transformer(CONFIG, dtype="mixed_bfloat16")
    model(BATCH)
    directory = ModelDirectory.create(tmp_path)
    directory.write_config(CONFIG.to_dict())
    directory.save_model(model)
    loaded = directory.load_model()
    assert {layer.compute_dtype for layer in loaded._flatten_layers()} == {"float32"}
    assert_all_equal(model.get_weights(), loaded.get_weights())
    plain = Transformer(CONFIG)
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(loaded(BATCH), plain(BATCH))


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_not_finite_update_is_skipped_and_halves_the_scale(run_eagerly):
    model = make_model("mixed_float16", run_eagerly=run_eagerly)
    model.loss_scale.scale.assign(2.0**120)
    before = model.get_weights()
    history = fit(model, steps=2)
    assert history["loss_scale"] == [2.0**120, 2.0**119]
    assert float(model.loss_scale.scale.value) == 2.0**118
    assert np.all(np.isfinite(history["loss"]))
    assert not np.any(np.isfinite(history["gradient_norm"]))
    assert_all_equal(before, model.get_weights())
    assert int(model.optimizer.iterations) == 2, "skipped updates are counted"
    model.loss_scale.scale.assign(2.0**10)
    assert fit(model)["loss_scale"] == [2.0**10]
    assert any(np.any(one != other) for one, other in zip(before, model.get_weights()))


def test_scale_doubles_after_growth_steps():
    model = make_model("mixed_float16")
    model.loss_scale.growth_steps = 2
    assert fit(model, steps=5)["loss_scale"] == [2.0**15, 2.0**15, 2.0**16, 2.0**16, 2.0**17]
