"""Sends a request of a JSON file to TensorFlow Serving over gRPC, and prints its outputs.

    python -m examples.serving.grpc_client localhost:8500 mine \
      examples/serving/translation/score.json [LABEL]

Requires the package tensorflow-serving-api. REST takes the same files:

    curl -d @examples/serving/translation/score.json http://localhost:8501/v1/models/mine:predict
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

# A slow request should end with an error before its client gives up.
TIMEOUT_SECONDS = 30
# The dtypes of signatures. In JSON, all numbers are alike.
DTYPES = {"U": tf.string, "i": tf.int32, "f": tf.float32}


def make_request(model: str, body: dict, label: str | None = None):
    """Returns a PredictRequest of the body of a REST request, for a version with a label."""
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = body["signature_name"]
    if label is not None:
        request.model_spec.version_label = label
    for name, value in body["inputs"].items():
        dtype = DTYPES[np.asarray(value).dtype.kind]
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype))
    return request


def main(argv):
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    address, model, file, *label = argv[1:]
    body = json.loads(Path(file).read_text())
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answer = stub.Predict(make_request(model, body, *label), timeout=TIMEOUT_SECONDS)
    for name, value in sorted(answer.outputs.items()):
        print(name, tf.make_ndarray(value).tolist())


if __name__ == "__main__":
    main(sys.argv)
