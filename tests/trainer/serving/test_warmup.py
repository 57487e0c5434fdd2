"""Tests of warm-up requests, which are decoded as protocol buffers."""

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from trainer.serving import warmup
from trainer.serving.decoding_defaults import TranslationSettings
from trainer.serving.warmup import prediction_log


def fields(message):
    """Returns (field number, bytes) of each field of a serialized message.

    All fields must be length-delimited.
    """
    found, place = [], 0

    def number():
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        tag = number()
        assert tag & 7 == 2, "the field is not length-delimited"
        length = number()
        found.append((tag >> 3, message[place : place + length]))
        place += length
    return found


def decode(log):
    """Returns (model, signature, arguments) of a serialized PredictionLog."""
    [(six, log)] = fields(log)
    [(one, request)] = fields(log)
    assert (six, one) == (6, 1)
    (first, spec), *entries = fields(request)
    assert first == 1 and {number for number, _ in entries} == {2}
    (name_number, name), (signature_number, signature) = fields(spec)
    assert (name_number, signature_number) == (1, 3)
    arguments = {}
    for _, entry in entries:
        (key_number, key), (value_number, value) = fields(entry)
        assert (key_number, value_number) == (1, 2)
        arguments[key.decode()] = tf.make_ndarray(tensor_pb2.TensorProto.FromString(value))
    return name.decode(), signature.decode(), arguments


def test_prediction_log_has_the_field_numbers_of_tensorflow_serving():
    inputs = {"text": tf.constant(["ein Hund", "ü" * 20_000]), "alpha": tf.constant(0.25)}
    name, signature, arguments = decode(prediction_log("mine", "translate", inputs))
    assert (name, signature) == ("mine", "translate")
    assert list(arguments) == ["alpha", "text"]
    assert arguments["alpha"] == np.float32(0.25)
    assert arguments["text"].tolist() == [b"ein Hund", ("ü" * 20_000).encode()]


def test_prediction_log_does_not_depend_on_the_order_of_arguments():
    inputs = {"text": tf.constant(["a"]), "alpha": tf.constant(0.6), "beam_size": tf.constant(4)}
    again = dict(reversed(inputs.items()))
    assert prediction_log("m", "translate", inputs) == prediction_log("m", "translate", again)


def test_warmup_requests_have_the_model_name_and_valid_arguments(exported_dir, loaded):
    seen = []
    for record in tf.data.TFRecordDataset(str(exported_dir / "1" / warmup.WARMUP_FILE)):
        name, signature, arguments = decode(record.numpy())
        assert name == exported_dir.name
        answer = loaded.signatures[signature](
            **{key: tf.constant(value) for key, value in arguments.items()}
        )
        sizes = {len(value) for value in arguments.values()}
        assert {len(value) for value in answer.values()} == sizes
        seen.append((signature, sizes.pop()))
    assert seen[:6] == [("serving_default", size) for size in (1, 8, 32)] * 2
    assert {name for name, _ in seen} == loaded.signatures.keys() - {"translate"}


def test_warmup_requests_have_all_compiled_sizes(tokenizer):
    settings = TranslationSettings(max_input_length=40, jit_compile=True)
    found = set()
    for signature, inputs in warmup.warmup_requests(tokenizer, settings):
        if signature == "serving_default":
            ids = tokenizer.tokenize(inputs["text"]).to_tensor()
            found.add((len(ids), next((n for n in (16, 32, 40) if n >= ids.shape[1]), 40)))
    assert {(batch, length) for batch in (1, 2, 4) for length in (16, 32, 40)} <= found
