"""Every layer under conditions that programs set: dtypes, empty inputs and graphs.

A condition changes how layers are called, and not what they compute. Outputs are compared with
those of plain calls. With empty inputs, they have to be finite.
"""

import contextlib
from functools import partial
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import BATCH, CASES, INPUTS, SIZES, dtype_of, random_inputs, symbolic_inputs

BACKEND = keras.backend.backend()


class Condition(NamedTuple):
    """How layers are called.

    Args:
        floatx: `keras.config.floatx()` when layers are created and called.
        dtype_policy: dtype policy of the layers. Default: `floatx`.
        index_dtype: dtype of positions, offsets and labels.
        sizes: the batch size "B", and the sizes of axes of `layer_cases` that differ.
        call: "eager", on JAX in a compiled function; "graph", with unknown sizes and numeric checks
            on TensorFlow; or "symbolic", as in a functional model with unknown sizes.
    """

    floatx: str = "float32"
    dtype_policy: str | None = None
    index_dtype: str = "int32"
    sizes: dict = {}
    call: str = "eager"


CONDITIONS = {
    "float16 as floatx, symbolic": Condition(floatx="float16", call="symbolic"),
    "float64 as floatx, uint8": Condition(floatx="float64", index_dtype="uint8"),
    "mixed precision, int64": Condition(dtype_policy="mixed_float16", index_dtype="int64"),
    "int64, graph": Condition(index_dtype="int64", call="graph"),
    "no queries": Condition(sizes={"T": 0, "L": 0, "H": 0}),
    "no keys": Condition(sizes={"S": 0, "L": 0, "W": 0}),
    "no sequences": Condition(sizes={"B": 0}),
}


def _offset(layer, x, ids):
    return layer(x, x, use_causal_mask=True, query_offset=ops.max(ids, initial=0))


def _read_cache(layer, x, ids):
    cache = layer.project_cache(x)
    return layer.attend_with_cache(x[:, :1], None, cache, query_offset=ids[:, 0])[0]


def _cache(layer, x, ids):
    cache = ops.zeros((ops.shape(x)[0], 2, 19, 2, 5), dtype=layer.compute_dtype)
    index = ops.max(ids, initial=0)
    return layer.attend_with_cache(x[:, :1], x[:, :1], cache, index, query_offset=index)[0]


def _decoder_cache(layer, x, ids):
    cache = ops.zeros((ops.shape(x)[0], 2, 19, 2, 3), dtype=layer.compute_dtype)
    index = ops.max(ids, initial=0)
    arguments = {"self_attention_cache": cache, "self_attention_cache_update_index": index}
    return layer(x[:, :1], **arguments)[0]


# Calls in addition to those of CASES: name of the layer, and function of the layer and its inputs.
OTHER_CALLS = {
    "query offset": ("relative", _offset),
    "cache that is read": ("relative_window", _read_cache),
    "cache": ("relative", _cache),
    "decoder cache": ("decoder_only", _decoder_cache),
}
# Cases that add settings to another one, which take the same code.
LEFT_OUT = (
    "relative_per_head",
    "relative_left_right",
    "relative_large_k",
    "v2_masked",
    "decoder_relative_cross_attention",
)
USED_CASES = {name: case for name, case in CASES.items() if name not in LEFT_OUT}


def call_all(layers, arrays):
    """Returns the outputs of all calls by name."""
    outputs = {name: case.call(layers[name], arrays) for name, case in USED_CASES.items()}
    if arrays["x"].shape[1] != 0 and not keras.backend.is_keras_tensor(arrays["x"]):
        for name, (case, call) in OTHER_CALLS.items():
            outputs[name] = call(layers[case], arrays["x"], arrays["ids"])
    return outputs


def make_layers():
    """Returns built layers by name, with the current dtype policy."""
    layers = {name: case.make() for name, case in USED_CASES.items()}
    arrays = random_inputs(
        INPUTS, np.random.default_rng(0), {"T": 2, "S": 3, "L": 3, "H": 1, "W": 2}
    )
    for name, case in USED_CASES.items():
        case.call(layers[name], arrays)
    return layers


@pytest.fixture(scope="module")
def plain_layers():
    keras.utils.set_random_seed(20180401)
    return make_layers()


@contextlib.contextmanager
def settings_of(condition):
    """Sets what a condition sets for the whole program."""
    keras.config.set_floatx(condition.floatx)
    keras.config.set_dtype_policy(condition.dtype_policy or condition.floatx)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def inputs_of(condition):
    """Returns arrays of all inputs by name."""
    arrays = random_inputs(INPUTS, np.random.default_rng(1), sizes=SIZES | condition.sizes)
    batch = condition.sizes.get("B", BATCH)
    dtypes = {"float32": condition.floatx, "int32": condition.index_dtype, "bool": "bool"}
    arrays = {name: x[:batch] for name, x in arrays.items()}
    if condition.index_dtype.startswith("u"):  # There is no label -1.
        arrays["labels"] = np.abs(arrays["labels"])
    return arrays, {name: x.astype(dtypes[dtype_of(name)]) for name, x in arrays.items()}


def run(condition, layers, arrays):
    """Returns the outputs of all calls, called as the condition describes."""
    compute = partial(call_all, layers)
    if BACKEND == "jax" and condition.call != "symbolic":
        import jax

        return jax.jit(compute)(arrays)
    if BACKEND == "tensorflow" and condition.call == "graph":
        return _in_graph(compute, arrays)
    return compute({name: ops.convert_to_tensor(x) for name, x in arrays.items()})


def _in_graph(compute, arrays):
    """Returns the results of a `tf.function` with unknown sizes that checks all numbers."""
    import tensorflow as tf

    specs = {
        name: tf.TensorSpec(
            (None, *(None if axis in SIZES else axis for axis in INPUTS[name])), x.dtype
        )
        for name, x in arrays.items()
    }
    tf.debugging.enable_check_numerics()
    try:
        return tf.function(compute, input_signature=[specs], autograph=False)(arrays)
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.parametrize("name", CONDITIONS)
def test_layers_under_a_condition(name, plain_layers):
    condition = CONDITIONS[name]
    if BACKEND == "jax" and condition.floatx == "float64":
        pytest.skip("JAX has float64 only with JAX_ENABLE_X64=1")
    arrays, converted = inputs_of(condition)
    with settings_of(condition):
        layers = plain_layers
        if keras.config.dtype_policy().name != "float32":
            layers = make_layers()
            for key, layer in layers.items():
                layer.set_weights(plain_layers[key].get_weights())
        if condition.call == "symbolic":
            outputs = call_all(layers, symbolic_inputs(INPUTS))
            assert {x.dtype for x in outputs.values()} == {condition.floatx}
            return
        found = run(condition, layers, converted)
    found = {key: ops.convert_to_numpy(ops.cast(x, "float32")) for key, x in found.items()}
    for key, output in found.items():
        assert np.isfinite(output).all(), key
    if condition.sizes:
        return
    tolerance = 2e-2 if condition.dtype_policy else 1e-5
    for key, output in run(Condition(), plain_layers, arrays).items():
        output = ops.convert_to_numpy(output)
        atol = tolerance * max(1, np.max(np.abs(output)))
        np.testing.assert_allclose(found[key], output, atol=atol, err_msg=key)
