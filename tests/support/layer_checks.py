"""Checks that every layer has to pass."""

import keras
import numpy as np


def check_layer(make, inputs, call=None, output_shape=None):
    """Checks serialization, symbolic and eager calls, `predict`, `fit` and bfloat16 of a layer.

    Args:
        make: `make(dtype=...)` returns the layer.
        inputs: a list of arrays.
        call: `call(layer, *inputs)` calls the layer. Default: `layer(*inputs)`.
        output_shape: expected shape of the output. Default: not checked.
    """
    call = call or (lambda layer, *xs: layer(*xs))
    layer = make(dtype="float32")
    eager = keras.ops.convert_to_numpy(call(layer, *inputs))
    assert np.isfinite(eager).all()
    if output_shape is not None:
        assert eager.shape == output_shape

    check_config(layer)
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    model = keras.Model(symbols, call(layer, *symbols))
    assert model.output.shape[1:] == eager.shape[1:]
    np.testing.assert_allclose(model.predict(inputs, verbose=0), eager, rtol=1e-5, atol=1e-5)

    if layer.trainable_variables:
        before = [keras.ops.convert_to_numpy(v) for v in layer.trainable_variables]
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(inputs, np.ones_like(eager), epochs=1, verbose=0)
        changed = [
            not np.array_equal(b, keras.ops.convert_to_numpy(v))
            for b, v in zip(before, layer.trainable_variables)
        ]
        assert any(changed)

    half = make(dtype="mixed_bfloat16")
    low = call(half, *inputs)
    assert keras.backend.standardize_dtype(low.dtype) == "bfloat16"
    assert all(v.dtype == "float32" for v in half.trainable_variables)
    if layer.trainable_variables:
        # Use the layer's weights from before `fit`.
        for variable, value in zip(half.trainable_variables, before):
            variable.assign(value)
        low = call(half, *inputs)
    low = keras.ops.convert_to_numpy(keras.ops.cast(low, "float32"))
    scale = np.abs(eager).max()
    np.testing.assert_allclose(low, eager, atol=0.05 * scale)


def check_config(layer):
    """Checks that a layer can be made from its configuration, also after serialization."""
    config = layer.get_config()
    copy = layer.__class__.from_config(config)
    assert copy.get_config() == config
    through_json = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert through_json.get_config() == config
