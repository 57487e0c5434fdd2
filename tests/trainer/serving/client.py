"""Calls signatures of an exported model, in an environment with another version of TensorFlow.

    python client.py SAVED_MODEL < CALLS.json > ANSWERS.json

With the package tensorflow-serving-api, arguments and outputs are sent as its messages, whose
names, dtypes and shapes are checked as TensorFlow Serving does, and the warm-up requests are run.
It needs the folder tests/support in PYTHONPATH.
"""

import json
import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers operations of the model
from signature_calls import as_tensors, meta_graph

try:
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
except ModuleNotFoundError:
    predict_pb2 = None


def make_request(name, tensors):
    """Returns a PredictRequest."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "mine", name
    for key, value in tensors.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return predict_pb2.PredictRequest.FromString(request.SerializeToString())


def check(tensors, infos):
    """Asserts that the tensors of a message have the names, dtypes and shapes of a signature."""
    assert tensors.keys() == infos.keys()
    for name, info in infos.items():
        assert tensors[name].dtype == info.dtype, name
        shape = tf.TensorShape(tensors[name].tensor_shape)
        assert tf.TensorShape(info.tensor_shape).is_compatible_with(shape), name


def predict(model, definition, request):
    """Returns the outputs of a PredictRequest."""
    check(request.inputs, definition.inputs)
    inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
    response = predict_pb2.PredictResponse()
    for key, value in model.signatures[request.model_spec.signature_name](**inputs).items():
        response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
    check(response.outputs, definition.outputs)
    return {key: tf.constant(tf.make_ndarray(value)) for key, value in response.outputs.items()}


def warm_up(model, definitions, file):
    """Runs the warm-up requests. Returns their number."""
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(file))]
    for record in records:
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.SerializeToString(deterministic=True) == record
        request = log.predict_log.request
        predict(model, definitions[request.model_spec.signature_name], request)
    return len(records)


def as_lists(outputs):
    """Returns outputs as lists of numbers and of str with escaped bytes."""

    def plain(value):
        if isinstance(value, list):
            return [plain(each) for each in value]
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value

    return {name: plain(value.numpy().tolist()) for name, value in outputs.items()}


def main(path):
    model, definitions = tf.saved_model.load(str(path)), meta_graph(path).signature_def
    answers = []
    for name, arguments in json.load(sys.stdin):
        signature = model.signatures[name]
        tensors = as_tensors(arguments, signature.structured_input_signature[1])
        if predict_pb2 is None:
            outputs = signature(**tensors)
        else:
            outputs = predict(model, definitions[name], make_request(name, tensors))
        answers.append(as_lists(outputs))
    warmup_file = path / "assets.extra/tf_serving_warmup_requests"
    count = None if predict_pb2 is None else warm_up(model, definitions, warmup_file)
    print(json.dumps({"tensorflow": tf.__version__, "answers": answers, "warmup_requests": count}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
