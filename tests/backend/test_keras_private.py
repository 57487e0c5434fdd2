"""Tests of private Keras APIs, and of the errors if Keras changes them."""

import importlib.util
import types

import keras
import numpy as np
import pytest

from t2t_relpos.backend import keras_private

CHANGED = rf" is missing or different in Keras {keras.__version__}. Install a version of Keras"


@pytest.fixture
def attention():
    layer = keras.layers.MultiHeadAttention(2, 3, use_gate=True)
    layer.build((None, None, 5), (None, None, 5))
    return layer


def raises_changed(name):
    return pytest.raises(ImportError, match=name + CHANGED)


def import_again():
    spec = importlib.util.find_spec("t2t_relpos.backend.keras_private")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(owner, name):
    return lambda monkeypatch: monkeypatch.delattr(owner, name)


def export_without_format(monkeypatch):
    monkeypatch.setattr(keras.Model, "export", lambda self, filepath, **kwargs: None)


@pytest.mark.parametrize(
    "change, name",
    [
        (missing(keras.src.backend, "get_keras_mask"), r"keras.src.backend \(.*get_keras_mask.*\)"),
        (missing(keras.layers.Layer, "_flatten_layers"), "_flatten_layers of keras.layers.Layer"),
        (export_without_format, "the argument `format` of keras.Model.export"),
    ],
)
def test_import_names_a_changed_api(change, name, monkeypatch):
    change(monkeypatch)
    with raises_changed(name):
        import_again()


def test_attached_mask():
    outputs = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[3, 0]]))
    np.testing.assert_array_equal(keras_private.attached_mask(outputs), [[True, False]])
    assert keras_private.attached_mask(np.zeros(3)) is None


def test_sublayers_returns_inner_layers_only(attention):
    assert attention.query_dense in keras_private.sublayers(attention)
    assert attention not in keras_private.sublayers(attention)


def test_kernel_variable_returns_the_kernel(attention):
    dense = attention.query_dense
    assert keras_private.kernel_variable(dense) is dense.weights[0]
    with raises_changed("_kernel of keras.layers.EinsumDense"):
        keras_private.kernel_variable(types.SimpleNamespace(kernel=dense.kernel))


def test_attention_projections_contain_all_variables(attention):
    projections = keras_private.attention_projections(attention)
    assert {*projections} == {"query", "key", "value", "output", "gate"}
    variables = [v.path for dense in projections.values() for v in dense.variables]
    assert sorted(variables) == sorted(v.path for v in attention.trainable_variables)
    public = {f"{name}_dense": projections[name] for name in ("query", "key", "value", "output")}
    changed = types.SimpleNamespace(**public, get_config=attention.get_config)
    with raises_changed("_gate_dense of keras.layers.MultiHeadAttention"):
        keras_private.attention_projections(changed)


def test_running_export_format_is_the_argument_of_export(monkeypatch):
    seen = []

    def export(self, filepath, format="onnx"):
        seen.append(module.running_export_format())

    assert keras_private.running_export_format() is None
    monkeypatch.setattr(keras.Model, "export", export)
    module = import_again()
    keras.Model().export("model", format="litert")
    keras.Model().export("model")
    assert seen == ["litert", "onnx"]
