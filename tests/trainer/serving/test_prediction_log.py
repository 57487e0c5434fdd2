import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from trainer.serving.prediction_log import prediction_log


def fields(message):
    """What a message holds on the wire: [(number of the field, bytes)], of fields that have a
    length only.
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
        assert tag & 7 == 2, "a field without a length"
        length = number()
        found.append((tag >> 3, message[place : place + length]))
        place += length
    return found


def test_request_on_the_wire_as_tensorflow_serving_numbers_its_fields():
    inputs = {"text": tf.constant(["ein Hund", "ü" * 100]), "alpha": tf.constant(0.25)}
    [(six, log)] = fields(prediction_log("mine", "translate", inputs))
    [(one, request)] = fields(log)
    assert (six, one) == (6, 1)
    (first, spec), *entries = fields(request)
    assert (first, fields(spec)) == (1, [(1, b"mine"), (3, b"translate")])
    assert [number for number, _ in entries] == [2, 2]
    decoded = {}
    for _, entry in entries:
        (key_number, key), (value_number, value) = fields(entry)
        assert (key_number, value_number) == (1, 2)
        decoded[key.decode()] = tf.make_ndarray(tensor_pb2.TensorProto.FromString(value))
    assert list(decoded) == ["alpha", "text"]
    assert decoded["alpha"] == np.float32(0.25)
    assert decoded["text"].tolist() == [b"ein Hund", ("ü" * 100).encode()]


def test_same_request_has_the_same_bytes():
    inputs = {"text": tf.constant(["a"]), "alpha": tf.constant(0.6), "beam_size": tf.constant(4)}
    again = dict(reversed(inputs.items()))
    assert prediction_log("m", "translate", inputs) == prediction_log("m", "translate", again)
