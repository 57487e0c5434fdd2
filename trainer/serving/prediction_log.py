"""Requests as TensorFlow Serving logs them, without its package, which brings a TensorFlow of its
own choice.
"""

import functools

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "tensorflow_serving_requests"
_Field = descriptor_pb2.FieldDescriptorProto
# Of tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto: the fields that a
# request has, by number.
_MESSAGES = {
    "ModelSpec": [("name", 1, _Field.TYPE_STRING), ("signature_name", 3, _Field.TYPE_STRING)],
    "Input": [("key", 1, _Field.TYPE_STRING), ("value", 2, _Field.TYPE_BYTES)],
    "PredictRequest": [("model_spec", 1, "ModelSpec"), ("inputs", 2, "Input")],
    "PredictLog": [("request", 1, "PredictRequest")],
    "PredictionLog": [("predict_log", 6, "PredictLog")],
}


def prediction_log(model_name: str, signature_name: str, inputs: dict[str, tf.Tensor]) -> bytes:
    """A serialised `tensorflow.serving.PredictionLog` of a request for a prediction.

    Args:
        model_name: which the server knows the model by.
        signature_name: of the SavedModel.
        inputs: the signature's arguments.

    Example:
        >>> log = prediction_log("mine", "serving_default", {"text": tf.constant(["A dog runs."])})
        >>> b"serving_default" in log and b"A dog runs." in log
        True
    """
    log = _classes()["PredictionLog"]()
    request = log.predict_log.request
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature_name
    for key, value in sorted(inputs.items()):
        # Where theirs is a map, its entries are messages like these; and a message is its bytes.
        request.inputs.add(
            key=key, value=tf.make_tensor_proto(value).SerializeToString(deterministic=True)
        )
    return log.SerializeToString(deterministic=True)


@functools.cache
def _classes():
    """The messages by name, in a separate pool, where they can't meet those of TensorFlow
    Serving's package.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_REPEATED if kind == "Input" else _Field.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }
