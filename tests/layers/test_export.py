"""Exported models give the outputs of Keras for sizes other than the traced ones.

The fast tests export some layers in one model. The slow tests export all layers.
"""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos import layers
from t2t_relpos._portable import is_portable
from t2t_relpos.attention import explain, portable
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

BACKEND = keras.backend.backend()
K, WIDTH, VOCABULARY, RELATIONS = 4, 16, 11, 3
# (batch size, length of queries, length of encoded sequences). Some are shorter than K.
SIZES = [(2, 7, 9), (3, 20, 2), (1, 1, 1), (2, 5, 3)]
FIXED_SIZES = (2, 10, 5)
# Converters warn about their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")


def attention(**options):
    return layers.RelativeMultiHeadAttention(2, 8, max_relative_position=K, **options)


def local(block_length):
    return layers.LocalRelativeMultiHeadAttention(2, 8, block_length, use_value_table=True)


def block(layer, **options):
    return layer(WIDTH, 2, max_relative_position=K, **options)


LAYERS = {
    "self": lambda i: attention()(i["x"], i["x"]),
    "causal": lambda i: attention()(i["x"], i["x"], use_causal_mask=True),
    "cross": lambda i: attention()(i["x"], i["encoded"], value_mask=i["encoded_mask"]),
    "per head": lambda i: attention(share_heads=False)(i["x"], i["x"], query_mask=i["x_mask"]),
    "key table": lambda i: attention(use_value_table=False)(i["x"], i["x"]),
    "window": lambda i: attention(sliding_window=3)(i["x"], i["x"]),
    "flash": lambda i: attention(flash_attention=True)(i["x"], i["x"]),
    "positions": lambda i: attention()(
        i["x"], i["x"], query_positions=i["ids"], key_positions=i["ids"]
    ),
    "without tables": lambda i: attention(use_key_table=False, use_value_table=False)(
        i["x"], i["x"]
    ),
    "large K": lambda i: layers.RelativeMultiHeadAttention(2, 8, max_relative_position=40)(
        i["x"], i["x"]
    ),
    "V2": lambda i: layers.RelativeMultiHeadAttentionV2(2, 8, K)(i["x"], i["x"]),
    "V2 masked": lambda i: layers.RelativeMultiHeadAttentionV2(
        2, 8, K, masked=True, use_value_table=True
    )(i["x"], i["x"]),
    "2D": lambda i: layers.RelativeMultiHeadAttention2D(2, 8, K)(i["image"], i["image"]),
    "local": lambda i: local(4)(i["x"], i["x"], key_mask=i["x_mask"]),
    "relation": lambda i: layers.RelationMultiHeadAttention(2, 8, RELATIONS)(
        i["x"], i["x"], relations=i["relations"]
    ),
    "encoder": lambda i: block(layers.TransformerEncoder)(i["x"], padding_mask=i["x_mask"]),
    "pre-norm encoder": lambda i: block(layers.TransformerEncoder, normalize_first=True)(i["x"]),
    "decoder": lambda i: block(layers.TransformerDecoder)(
        i["x"], i["encoded"], encoder_padding_mask=i["encoded_mask"]
    ),
    "decoder only": lambda i: block(layers.TransformerDecoder)(i["x"]),
    "feed-forward": lambda i: layers.FeedForward(WIDTH)(i["x"]),
    "learned positions": lambda i: layers.LearnedPositionEmbedding(32)(i["x"]),
    "sinusoids": lambda i: layers.SinusoidalPositionEncoding()(i["x"]),
    "relative embedding": lambda i: layers.RelativePositionEmbedding(K, 8)(i["x"]),
    "tokens": lambda i: layers.TokenEmbedding(VOCABULARY, WIDTH)(i["ids"]),
}
# jax2onnx converts these for fixed batch sizes and lengths only.
FIXED_ON_JAX = {"2D", "local"}
FAST = ["causal", "cross", "relation", "encoder"]
# Layers in one model of the slow tests.
GROUP = 6


def model_of(names, batch_size=None, length_q=None, length_k=None):
    """Returns a functional model with an output for each name. Default: unknown sizes."""
    shapes = {
        "x": ((length_q, WIDTH), "float32"),
        "encoded": ((length_k, WIDTH), "float32"),
        "x_mask": ((length_q,), "bool"),
        "encoded_mask": ((length_k,), "bool"),
        "ids": ((length_q,), "int32"),
        "relations": ((length_q, length_q), "int32"),
        "image": ((length_q, length_k, WIDTH), "float32"),
    }
    inputs = {
        name: keras.Input(shape, batch_size=batch_size, dtype=dtype, name=name)
        for name, (shape, dtype) in shapes.items()
    }
    used = {**inputs, **derived(inputs["x"], inputs["encoded"])} if BACKEND == "jax" else inputs
    model = keras.Model(inputs, [LAYERS[name](used) for name in names])
    # Keras exports a model to ONNX only after a call.
    model(arrays(batch_size or 2, length_q or 6, length_k or 8))
    return model


def derived(x, encoded):
    """Returns masks and ids as functions of other inputs.

    Keras names the lengths of all inputs differently when it exports from JAX, so a mask that is a
    separate input can't be combined with a sequence.
    """
    first = x[..., 0]
    pairs = ops.expand_dims(first, 2) * ops.expand_dims(first, 1)
    return {
        "x_mask": first > -0.5,
        "encoded_mask": encoded[..., 0] > -0.5,
        "ids": ops.cast(ops.clip(2 * ops.abs(first), 0, VOCABULARY - 1), "int32"),
        "relations": ops.cast(ops.clip(2 * pairs, -1, RELATIONS - 1), "int32"),
    }


def arrays(batch_size, length_q, length_k, seed=0):
    """Returns random inputs of `model_of`."""
    rng = np.random.default_rng([seed, batch_size, length_q, length_k])
    pairs = (batch_size, length_q, length_q)
    return {
        "x": rng.normal(size=(batch_size, length_q, WIDTH)).astype("float32"),
        "encoded": rng.normal(size=(batch_size, length_k, WIDTH)).astype("float32"),
        "x_mask": rng.random((batch_size, length_q)) < 0.7,
        "encoded_mask": rng.random((batch_size, length_k)) < 0.7,
        "ids": rng.integers(0, VOCABULARY, (batch_size, length_q)).astype("int32"),
        "relations": rng.integers(-1, RELATIONS, pairs).astype("int32"),
        "image": rng.normal(size=(batch_size, length_q, length_k, WIDTH)).astype("float32"),
    }


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
    "jax": ["tf_saved_model", "onnx"],
    "torch": ["onnx"],
}[BACKEND]


def export(model, format, folder, **options):
    """Exports a model. Returns a function that runs the result."""
    if format == "onnx":
        for package in ("onnx", "onnxruntime", {"tensorflow": "tf2onnx", "jax": "jax2onnx"}):
            name = package if isinstance(package, str) else package.get(BACKEND, "onnx")
            pytest.importorskip(name, reason=f"requires {name}")
    name, load = FORMATS[format]
    path = str(folder / name)
    model.export(path, format=format, verbose=False, **options)
    return load(path)


def assert_equal_outputs(run, model, inputs, names):
    expected = [ops.convert_to_numpy(x) for x in keras.tree.flatten(model(inputs))]
    outputs = [np.asarray(x) for x in keras.tree.flatten(run(inputs))]
    assert len(outputs) == len(expected)
    for name, output, want in zip(names, outputs, expected):
        np.testing.assert_allclose(output, want, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("format", SUPPORTED)
def test_export_of_several_layers_for_unknown_sizes(format, tmp_path):
    model = model_of(FAST)
    run = export(model, format, tmp_path)
    for sizes in SIZES:
        assert_equal_outputs(run, model, arrays(*sizes), FAST)


@pytest.mark.slow
@pytest.mark.parametrize("format", SUPPORTED)
@pytest.mark.parametrize("first", range(0, len(LAYERS), GROUP))
def test_export_of_all_layers(first, format, tmp_path):
    names = list(LAYERS)[first : first + GROUP]
    if BACKEND == "jax" and format == "onnx":
        # See test_export_for_fixed_sizes_on_jax.
        names = [name for name in names if name not in FIXED_ON_JAX]
    model = model_of(names)
    run = export(model, format, tmp_path)
    for sizes in SIZES:
        assert_equal_outputs(run, model, arrays(*sizes), names)


@pytest.mark.skipif(BACKEND != "jax", reason="other backends export unknown sizes")
@pytest.mark.parametrize(
    "names",
    [[*FAST, *sorted(FIXED_ON_JAX)], pytest.param(list(LAYERS), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_export_for_fixed_sizes_on_jax(names, tmp_path):
    model = model_of(names, *FIXED_SIZES)
    signature = [
        {i.name: keras.InputSpec(shape=i.shape, dtype=i.dtype, name=i.name) for i in model.inputs}
    ]
    run = export(model, "onnx", tmp_path, input_signature=signature)
    assert_equal_outputs(run, model, arrays(*FIXED_SIZES), names)


@pytest.mark.skipif(BACKEND != "jax", reason="tests an error on JAX")
@pytest.mark.parametrize("name", sorted(FIXED_ON_JAX))
def test_jax_reports_layers_that_need_fixed_sizes(name, tmp_path):
    model = model_of([name])
    message = "fixed batch size and length only. Pass `input_signature`"
    with pytest.raises(ValueError, match=message):
        export(model, "onnx", tmp_path)


def transformer():
    config = TransformerConfig.from_preset(
        "tiny", vocab_size=VOCABULARY, num_encoder_layers=1, num_decoder_layers=1
    )
    return Transformer(config)


@pytest.mark.parametrize("format", SUPPORTED)
def test_export_of_a_transformer_that_was_never_called(format, tmp_path):
    model = transformer()
    run = export(model, format, tmp_path)
    for batch_size, length_q, length_k in SIZES:
        targets, inputs = (
            np.random.default_rng(0).integers(0, VOCABULARY, (batch_size, n)).astype("int32")
            for n in (length_q, length_k)
        )
        assert_equal_outputs(run, model, {"inputs": inputs, "targets": targets}, ["logits"])


@pytest.mark.parametrize("before", ["call", "fit"])
def test_export_of_a_transformer_that_was_called_or_trained(before, tmp_path, tf):
    model = transformer()
    ids = np.array([[5, 7, 9, 2, 1], [3, 1, 0, 0, 0], [8, 8, 4, 1, 0]], "int32")
    inputs = {"inputs": ids, "targets": ids[:, :4]}
    if before == "call":
        model(inputs)
    else:
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(inputs, ids[:, :4], verbose=0)
    run = export(model, "tf_saved_model", tmp_path)
    assert_equal_outputs(run, model, inputs, ["logits"])


@pytest.mark.parametrize("format", SUPPORTED)
def test_export_of_a_causal_lm_that_was_never_called(format, tmp_path):
    model = CausalLM(
        vocab_size=VOCABULARY,
        num_layers=1,
        hidden_dim=WIDTH,
        intermediate_dim=WIDTH,
        num_heads=2,
        max_relative_position=K,
    )
    run = export(model, format, tmp_path)
    for batch_size, length, _ in SIZES:
        ids = np.random.default_rng(0).integers(0, VOCABULARY, (batch_size, length))
        ids = ids.astype("int32")
        expected = ops.convert_to_numpy(model(ids))
        given = ids if format == "tf_saved_model" else {"ids": ids}
        np.testing.assert_allclose(
            np.asarray(run(given)).reshape(expected.shape), expected, atol=2e-5
        )


class Subclassed(keras.Model):
    """A subclass of `keras.Model` that is not a functional model."""

    def __init__(self):
        super().__init__()
        self.encoder = block(layers.TransformerEncoder)
        self.residual = layers.Residual()
        self.dense = keras.layers.Dense(WIDTH)

    def call(self, x):
        return self.residual(self.encoder(x), sublayer=self.dense)


def test_export_of_a_subclassed_model(tmp_path):
    model = Subclassed()
    x = arrays(*SIZES[0])["x"]
    expected = ops.convert_to_numpy(model(x))
    signature = [keras.InputSpec(shape=(None, None, WIDTH), dtype="float32", name="x")]
    run = export(model, "onnx", tmp_path, input_signature=signature)
    np.testing.assert_allclose(run({"x": x})[0], expected, atol=2e-5)


class Recorder(keras.layers.Layer):
    """A layer that records the results of `is_portable` during calls."""

    def __init__(self):
        super().__init__()
        self.records = set()

    def call(self, x):
        self.records.add(is_portable())
        return x


@pytest.mark.parametrize("format", SUPPORTED)
def test_export_is_portable_except_for_saved_models(format, tmp_path):
    recorder = Recorder()
    x = keras.Input((None, WIDTH))
    model = keras.Model(x, recorder(x))
    model(np.ones((1, 2, WIDTH), "float32"))
    assert recorder.records == {False}
    recorder.records.clear()
    export(model, format, tmp_path)
    assert recorder.records == {format != "tf_saved_model"}
    assert not is_portable()


def test_portable_selects_implementations_of_standard_operations():
    with portable():
        assert is_portable()
        assert explain(5000).chosen == "band"
    assert not is_portable()
    assert explain(5000).chosen != "band"


def test_portable_with_another_converter(tmp_path, tf):
    layer = attention()
    x = arrays(2, 7, 1)["x"]
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
