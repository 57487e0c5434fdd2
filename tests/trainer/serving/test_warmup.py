"""Tests of warm-up requests, which are decoded as protocol buffers."""

import functools

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from trainer.data.tokenizer import Tokenizers
from trainer.serving import warmup
from trainer.serving.translation_settings import TranslationSettings
from trainer.serving.warmup import prediction_log

# The fields of tensorflow_serving/apis/prediction_log.proto that a request has. The package
# tensorflow-serving-api, which has all of them, would install another version of TensorFlow.
DEFINITION = """
name: "prediction_log.proto" package: "tests" syntax: "proto3"
dependency: "tensorflow/core/framework/tensor.proto"
message_type {
  name: "PredictionLog"
  field { name: "predict_log" number: 6 type: TYPE_MESSAGE type_name: ".tests.PredictLog" }
}
message_type {
  name: "PredictLog"
  field { name: "request" number: 1 type: TYPE_MESSAGE type_name: ".tests.PredictRequest" }
}
message_type {
  name: "PredictRequest"
  field { name: "model_spec" number: 1 type: TYPE_MESSAGE type_name: ".tests.ModelSpec" }
  field {
    name: "inputs" number: 2 label: LABEL_REPEATED
    type: TYPE_MESSAGE type_name: ".tests.PredictRequest.InputsEntry"
  }
  nested_type {
    name: "InputsEntry"
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.TensorProto" }
    options { map_entry: true }
  }
}
message_type {
  name: "ModelSpec"
  field { name: "name" number: 1 type: TYPE_STRING }
  field { name: "signature_name" number: 3 type: TYPE_STRING }
}
"""


@functools.cache
def prediction_log_class():
    file = text_format.Parse(DEFINITION, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.PredictionLog"))


def decode(serialized):
    """Returns (model, signature, arguments) of a serialized PredictionLog."""
    log = prediction_log_class().FromString(serialized)
    log.DiscardUnknownFields()
    assert log.SerializeToString(deterministic=True) == serialized, "it has unknown fields"
    request = log.predict_log.request
    arguments = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
    return request.model_spec.name, request.model_spec.signature_name, arguments


def test_prediction_log_has_the_field_numbers_of_tensorflow_serving():
    inputs = {"text": tf.constant(["ein Hund", "ü" * 20_000]), "alpha": tf.constant(0.25)}
    name, signature, arguments = decode(prediction_log("mine", "translate", inputs))
    assert (name, signature) == ("mine", "translate")
    assert sorted(arguments) == ["alpha", "text"]
    assert arguments["alpha"] == np.float32(0.25)
    assert arguments["text"].tolist() == [b"ein Hund", ("ü" * 20_000).encode()]


def test_warmup_requests_have_the_model_name_and_valid_arguments(exported_dir, loaded):
    seen = []
    for record in tf.data.TFRecordDataset(str(exported_dir / "1" / warmup.WARMUP_FILE)):
        name, signature, arguments = decode(record.numpy())
        assert name == exported_dir.name
        (size,) = {len(value) for value in arguments.values()}
        if size == 1:
            arguments = {key: tf.constant(value) for key, value in arguments.items()}
            answer = loaded.signatures[signature](**arguments)
            assert {len(value) for value in answer.values()} == {1}
        seen.append((signature, size))
    assert seen[:6] == [("serving_default", size) for size in (1, 8, 32)] * 2
    assert {name for name, _ in seen} == loaded.signatures.keys() - {"translate"}


def test_warmup_requests_have_all_compiled_sizes(tokenizer):
    settings = TranslationSettings(max_input_length=40, jit_compile=True)
    found = set()
    for signature, inputs in warmup.warmup_requests(Tokenizers.shared(tokenizer), settings):
        if signature == "serving_default":
            ids = tokenizer.tokenize(inputs["text"]).to_tensor()
            found.add((len(ids), next((n for n in (16, 32, 40) if n >= ids.shape[1]), 40)))
    assert {(batch, length) for batch in (1, 2, 4) for length in (16, 32, 40)} <= found
