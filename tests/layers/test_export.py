"""Exported models give the outputs of Keras for sizes other than the traced ones.

Layers are outputs of one model. The long tests export all layers.
"""

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import CASES, INPUTS, WIDTH, random_inputs, symbolic_inputs

from t2t_relpos import layers
from t2t_relpos.attention import explain, portable
from t2t_relpos.backend import is_portable
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

BACKEND = keras.backend.backend()
VOCABULARY = 11
BLOCK = {"intermediate_dim": 16, "num_heads": 2, "max_relative_position": 4}
# (batch size, length of `x`, length of `y`). Some are shorter than the clipping distance.
SIZES = [(2, 7, 9), (3, 20, 2), (1, 1, 1)]
# Converters warn about their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")
# The encoder contains the attention of the case "relative".
FAST = ("relative_left_right", "relations", "encoder")
some_and_all = pytest.mark.parametrize(
    "names", [FAST, pytest.param(tuple(CASES), marks=pytest.mark.long)], ids=["some", "all"]
)


class Recorder(keras.layers.Layer):
    """A layer that records the results of `is_portable` during calls of all such layers."""

    records = set()

    def call(self, x):
        Recorder.records.add(is_portable())
        return x


def model_of(names):
    """Returns a functional model of unknown sizes with an output for each name."""
    inputs = symbolic_inputs(INPUTS)
    used = {**inputs, **derived(inputs["x"], inputs["y"])} if BACKEND == "jax" else inputs
    outputs = [CASES[name].call(CASES[name].make(), used, masks=True) for name in names]
    return keras.Model(inputs, [*outputs, Recorder()(inputs["x"])])


def derived(x, y):
    """Returns masks and ids as functions of other inputs.

    Keras names the lengths of all inputs differently when it exports from JAX, so a mask that is a
    separate input can't be combined with a sequence.
    """
    first, last = x[..., 0], y[..., 0]
    pairs = ops.expand_dims(first, 2) * ops.expand_dims(last, 1)
    return {
        "x_mask": first > -0.5,
        "y_mask": last > -0.5,
        "ids": ops.cast(ops.clip(2 * ops.abs(first), 0, 6), "int32"),
        "y_ids": ops.cast(ops.clip(2 * ops.abs(last), 0, 6), "int32"),
        "labels": ops.cast(ops.clip(2 * pairs, -1, 6), "int32"),
    }


def arrays_of(batch_size, length_x, length_y):
    """Returns random inputs of `model_of`."""
    rng = np.random.default_rng([batch_size, length_x, length_y])
    lengths = {"T": length_x, "S": length_y, "L": 3 * length_x, "H": length_x, "W": length_y}
    arrays = random_inputs(INPUTS, rng, lengths)
    masks = {name: rng.random(x.shape) < 0.7 for name, x in arrays.items() if x.dtype == bool}
    return {name: x[:batch_size] for name, x in (arrays | masks).items()}


def load_onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    return lambda inputs: session.run(None, {name: inputs[name.split(":")[0]] for name in names})


def load_litert(path):
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(path)

    def run(inputs):
        runner = interpreter.get_signature_runner()
        outputs = runner(**{name: inputs[name] for name in runner.get_input_details()})
        return [outputs[name] for name in sorted(outputs, key=lambda n: int(n.split("_")[-1]))]

    return run


def load_saved_model(path):
    import tensorflow as tf

    model = tf.saved_model.load(path)
    # The function `model.serve` has only weak references to the model.
    return lambda inputs: model.serve(inputs)


FORMATS = {
    "onnx": ("model.onnx", load_onnx),
    "litert": ("model.tflite", load_litert),
    "tf_saved_model": ("saved_model", load_saved_model),
}
SUPPORTED = {
    "tensorflow": ["tf_saved_model", "onnx", "litert"],
    "jax": ["tf_saved_model"],
    "torch": ["onnx"],
}[BACKEND]


def export(model, format, folder, **options):
    """Exports a model. Returns a function that runs the result."""
    packages = ["tensorflow"]
    if format == "onnx":
        converter = "tf2onnx" if BACKEND == "tensorflow" else "onnx"
        packages = ["onnx", "onnxruntime", converter]
    for package in packages:
        pytest.importorskip(package, reason=f"requires {package}")
    name, load = FORMATS[format]
    path = str(folder / name)
    model.export(path, format=format, verbose=False, **options)
    return load(path)


def assert_equal_outputs(run, model, inputs, names=("logits",)):
    expected, outputs = (keras.tree.flatten(call(inputs)) for call in (model, run))
    for name, output, want in zip(names, outputs, expected, strict=True):
        want = ops.convert_to_numpy(want)
        np.testing.assert_allclose(np.asarray(output), want, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("format", SUPPORTED)
@some_and_all
def test_export_of_layers_for_unknown_sizes(names, format, tmp_path):
    model = model_of(names)
    model.compile("sgd", "mse", jit_compile=BACKEND != "torch")
    Recorder.records.clear()
    # Keras exports a model to ONNX only after a call.
    model(arrays_of(2, 6, 8))
    assert Recorder.records == {False}
    Recorder.records.clear()
    run = export(model, format, tmp_path)
    # All formats but SavedModel need standard operations.
    assert Recorder.records == {format != "tf_saved_model"}
    assert not is_portable()
    for sizes in SIZES:
        assert_equal_outputs(run, model, arrays_of(*sizes), [*names, "recorder"])


@pytest.mark.skipif(BACKEND != "jax", reason="other backends export to ONNX")
def test_onnx_from_jax_names_the_command_on_another_backend(monkeypatch):
    # Keras refuses the export before it calls a layer if jax2onnx is not installed.
    monkeypatch.setattr("t2t_relpos.backend.jax.running_export_format", lambda: "onnx")
    message = "(?s)TensorFlow or PyTorch. Received: an export from JAX.*KERAS_BACKEND=tensorflow"
    with pytest.raises(ValueError, match=message):
        model_of(["encoder"])


def transformer(**settings):
    sizes = {"vocab_size": VOCABULARY, "num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(**{"hidden_dim": 16} | BLOCK | sizes | settings))


@pytest.mark.parametrize(
    "format",
    # ONNX is slow, and fast for a CausalLM and for a subclassed model.
    [
        pytest.param(each, marks=[pytest.mark.slow] if each == "onnx" else [])
        for each in SUPPORTED
        if each != "litert"
    ],
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"max_relative_position": (5, 2), "relative_cross_attention": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_export_of_a_transformer_that_was_never_called(settings, format, tmp_path, rng):
    model = transformer(**settings)
    run = export(model, format, tmp_path)
    for batch_size, *sizes in SIZES:
        ids = [rng.integers(0, VOCABULARY, (batch_size, n)).astype("int32") for n in sizes]
        assert_equal_outputs(run, model, {"inputs": ids[0], "targets": ids[1]})


@pytest.mark.parametrize("format", [each for each in SUPPORTED if each != "tf_saved_model"])
@pytest.mark.parametrize("distances", [4, pytest.param((5, 2), marks=pytest.mark.slow)])
def test_export_of_a_causal_lm_that_was_never_called(distances, format, tmp_path, rng):
    model = CausalLM(VOCABULARY, 1, hidden_dim=16, **BLOCK | {"max_relative_position": distances})
    run = export(model, format, tmp_path)
    for batch_size, length, _ in SIZES:
        ids = rng.integers(0, VOCABULARY, (batch_size, length)).astype("int32")
        expected = ops.convert_to_numpy(model(ids))
        outputs = np.asarray(run({"ids": ids})).reshape(expected.shape)
        np.testing.assert_allclose(outputs, expected, atol=2e-5)


class Subclassed(keras.Model):
    """A subclass of `keras.Model` that is not a functional model."""

    def __init__(self):
        super().__init__()
        self.encoder = layers.TransformerEncoder(**BLOCK)
        self.residual = layers.Residual()
        self.dense = keras.layers.Dense(WIDTH)

    def call(self, x):
        return self.residual(self.encoder(x), sublayer=self.dense)


@pytest.mark.skipif("onnx" not in SUPPORTED, reason="requires an export to ONNX")
def test_export_of_a_subclassed_model(tmp_path):
    model, x = Subclassed(), arrays_of(2, 7, 9)["x"]
    expected = ops.convert_to_numpy(model(x))
    signature = [keras.InputSpec(shape=(None, None, WIDTH), dtype="float32", name="x")]
    run = export(model, "onnx", tmp_path, input_signature=signature)
    np.testing.assert_allclose(run({"x": x})[0], expected, atol=2e-5)


def test_portable_selects_implementations_of_standard_operations():
    with portable():
        assert is_portable()
        assert explain(5000).chosen == "by_id"
    assert not is_portable()
    assert explain(5000).chosen != "by_id"


def test_portable_with_another_converter(tmp_path, tf):
    layer, x = CASES["relative"].make(), arrays_of(2, 7, 1)["x"]
    expected = layer(x, x)
    archive = keras.export.ExportArchive()
    archive.track(layer)
    with portable():
        archive.add_endpoint("serve", lambda x: layer(x, x), [tf.TensorSpec((None, None, WIDTH))])
        archive.write_out(str(tmp_path), verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    path = tmp_path / "model.tflite"
    path.write_bytes(converter.convert())
    np.testing.assert_allclose(load_litert(str(path))({"x": x})[0], expected, atol=2e-5)
