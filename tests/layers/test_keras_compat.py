"""Tests of private Keras APIs, and of the errors if Keras changes them."""

import types

import keras
import numpy as np
import pytest

from t2t_relpos import _keras_compat

CHANGED = rf" is missing or different in Keras {keras.__version__}. Install a version of Keras"


@pytest.fixture
def attention():
    layer = keras.layers.MultiHeadAttention(2, 3, use_gate=True)
    layer.build((None, None, 5), (None, None, 5))
    return layer


def raises_changed(name):
    return pytest.raises(ImportError, match=name + CHANGED)


def test_attached_mask(monkeypatch):
    outputs = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[3, 0]]))
    np.testing.assert_array_equal(_keras_compat.attached_mask(outputs), [[True, False]])
    assert _keras_compat.attached_mask(np.zeros(3)) is None
    monkeypatch.delattr("keras.src.backend.get_keras_mask")
    with raises_changed("keras.src.backend.get_keras_mask"):
        _keras_compat.attached_mask(outputs)


def test_sublayers_returns_inner_layers_only(attention, monkeypatch):
    assert attention.query_dense in _keras_compat.sublayers(attention)
    assert attention not in _keras_compat.sublayers(attention)
    monkeypatch.delattr(keras.layers.Layer, "_flatten_layers")
    with raises_changed("_flatten_layers of keras.layers.Layer"):
        _keras_compat.sublayers(attention)


def test_kernel_variable_returns_the_kernel(attention):
    dense = attention.query_dense
    assert _keras_compat.kernel_variable(dense) is dense.weights[0]
    with raises_changed("_kernel of keras.layers.EinsumDense"):
        _keras_compat.kernel_variable(types.SimpleNamespace(kernel=dense.kernel))


def test_attention_projections_contain_all_variables(attention):
    projections = _keras_compat.attention_projections(attention)
    assert {*projections} == {"query", "key", "value", "output", "gate"}
    variables = [v.path for dense in projections.values() for v in dense.variables]
    assert sorted(variables) == sorted(v.path for v in attention.trainable_variables)
    public = {f"{name}_dense": projections[name] for name in ("query", "key", "value", "output")}
    changed = types.SimpleNamespace(**public, get_config=attention.get_config)
    with raises_changed("_gate_dense of keras.layers.MultiHeadAttention"):
        _keras_compat.attention_projections(changed)


def test_running_export_format_is_the_argument_of_export(monkeypatch):
    seen = []

    def export(self, filepath, format="onnx"):
        seen.append(_keras_compat.running_export_format())

    assert _keras_compat.running_export_format() is None
    monkeypatch.setattr(keras.Model, "export", export)
    keras.Model().export("model", format="litert")
    keras.Model().export("model")
    assert seen == ["litert", "onnx"]
    monkeypatch.setattr(keras.Model, "export", lambda self, filepath, **kwargs: None)
    with raises_changed("the argument `format` of keras.Model.export"):
        _keras_compat.running_export_format()
