"""Calls signatures of an exported model, in an environment with another version of TensorFlow.

    python client.py SAVED_MODEL < CALLS.json > ANSWERS.json

With the package tensorflow-serving-api, arguments and outputs are sent as its messages, whose
names, dtypes and shapes are checked as TensorFlow Serving does, and the warm-up requests are run.
It needs the project and its folder tests/support in PYTHONPATH.
"""

import json
import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers operations of the model
from signature_calls import as_tensors, meta_graph

try:
    from google.protobuf import text_format
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    from tensorflow_serving.config import model_server_config_pb2

    from examples.serving.grpc_client import make_request
except ModuleNotFoundError:
    predict_pb2 = None

EXAMPLES = Path(__file__).parents[3] / "examples/serving"


def check_models_config(text):
    """Asserts that a ModelServerConfig has two versions, and a label for each of them."""
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert [*model.model_version_policy.specific.versions] == [1, 2]
    assert dict(model.version_labels) == {"stable": 1, "canary": 2}


def sent(request):
    """Returns a message as it arrives."""
    return type(request).FromString(request.SerializeToString())


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


def check_examples(model, definitions):
    """Parses the config of examples/serving, and answers its requests."""
    check_models_config((EXAMPLES / "models.config").read_text())
    for file in sorted((EXAMPLES / "translation").glob("*.json")):
        request = sent(make_request("mine", json.loads(file.read_text()), "stable"))
        assert request.model_spec.version_label == "stable"
        predict(model, definitions[request.model_spec.signature_name], request)


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
            request = predict_pb2.PredictRequest()
            request.model_spec.name, request.model_spec.signature_name = "mine", name
            for key, value in tensors.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            outputs = predict(model, definitions[name], sent(request))
        answers.append(as_lists(outputs))
    if predict_pb2 is not None:
        check_examples(model, definitions)
    warmup_file = path / "assets.extra/tf_serving_warmup_requests"
    count = None if predict_pb2 is None else warm_up(model, definitions, warmup_file)
    print(json.dumps({"tensorflow": tf.__version__, "answers": answers, "warmup_requests": count}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
