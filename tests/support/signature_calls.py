"""Calls of all signatures of an exported model by clients in other processes."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2


def calls(text):
    """Returns a call of each signature: its name and arguments."""
    search = {"beam_size": 5, "alpha": 0.25, "max_length": 23, "num_results": 3}
    return [
        ("serving_default", {"text": text}),
        ("translate", {"text": text} | search),
        ("score", {"text": text, "translation": text[::-1]}),
        ("tokenize", {"text": text}),
        ("ids", {"text": text}),
        ("detokenize", {"ids": [[5, 7, 11, 1, 5], [3, 20, 5, 0, 1]]}),
    ]


def meta_graph(path):
    """Returns the MetaGraphDef of a SavedModel."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    return model.meta_graphs[0]


def as_tensors(arguments, specs):
    """Returns the arguments of a call as tensors.

    Args:
        arguments: numbers, lists of numbers, and lists of str with escaped bytes, by name.
        specs: specifications with a dtype, by name.
    """
    tensors = {}
    for name, value in arguments.items():
        if specs[name].dtype == tf.string:
            value = [text.encode("utf-8", "surrogateescape") for text in value]
        tensors[name] = tf.constant(value, specs[name].dtype)
    return tensors


def assert_answer_equals(answer, expected, call):
    """Asserts that the outputs of a client equal tensors.

    Args:
        answer: lists of numbers, and of bytes or of str with escaped bytes, by name.
        expected: tensors by name.
        call: name of the signature, for messages.
    """
    assert set(answer) == set(expected), call
    for name, value in expected.items():
        found = np.array(answer[name], object)
        assert found.shape == value.shape, (call, name)
        if value.dtype.is_floating:
            np.testing.assert_allclose(
                found.astype("float32"), value, atol=1e-4, rtol=1e-4, err_msg=f"{call} {name}"
            )
        elif value.dtype == tf.string:
            texts = [
                text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
                for text in found.ravel()
            ]
            assert texts == value.numpy().ravel().tolist(), (call, name)
        else:
            assert found.tolist() == value.numpy().tolist(), (call, name)
