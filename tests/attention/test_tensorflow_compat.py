import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow only", allow_module_level=True)

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from t2t_relpos.attention.tensorflow import compat


def test_xla_is_detected_in_nested_functions():
    for jit_compile in (False, True):
        inner = tf.function(lambda x: tf.fill([2], x if compat.is_compiled_by_xla() else -x))
        outer = tf.function(lambda x, inner=inner: inner(x), jit_compile=jit_compile)
        assert outer(tf.ones([])).numpy().tolist() == [1.0 if jit_compile else -1.0] * 2
    assert not compat.is_compiled_by_xla()


def test_shared_function_is_not_inlined():
    shared = compat.shared_function(lambda x: x + 1)
    outer = tf.function(lambda x: shared(shared(x))).get_concrete_function(tf.TensorSpec([]))
    functions = outer.graph.as_graph_def().library.function
    assert len(functions) == 1, "one body for both calls"
    assert functions[0].attr["_noinline"].b


def test_changed_tensorflow_internals_raise_an_error_with_the_version(monkeypatch):
    message = rf"different in TensorFlow {tf.__version__}. Install a version of TensorFlow"
    monkeypatch.delattr(control_flow_util, "GraphOrParentsInXlaContext")
    with pytest.raises(ImportError, match=message):
        compat.is_compiled_by_xla()

    def changed(function, autograph):
        return function

    monkeypatch.setattr(tf, "function", changed)
    with pytest.raises(ImportError, match=message):
        compat.shared_function(lambda x: x)
