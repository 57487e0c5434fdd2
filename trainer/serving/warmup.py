"""Warm-up requests, which TensorFlow Serving runs before it serves a version of a model.

TensorFlow Serving reads them from `assets.extra/tf_serving_warmup_requests`. If a request fails,
the server does not serve the version. A server with batching rejects arguments without a batch
dimension, and batches above its limit. The requests therefore leave out `translate`, and the
largest batch is `max(BATCH_SIZES)`.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow as tf

WARMUP_FILE = Path("assets.extra/tf_serving_warmup_requests")
BATCH_SIZES = (1, 8, 32)
# Numbers of ids of a short sentence and of a long one.
LENGTHS = (8, 32)
# Field numbers of prediction_log.proto, predict.proto and model.proto, and those of map entries.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS = 6, 1, 1, 2
_NAME, _SIGNATURE, _KEY, _VALUE = 1, 3, 1, 2
_LENGTH_DELIMITED = 2  # Wire type of bytes, strings and messages.


def write(directory: Path, model_name: str, requests: Iterable[tuple[str, dict]]):
    """Writes requests, (signature, arguments), into the SavedModel of a version."""
    file = directory / WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature_name, inputs in requests:
            writer.write(prediction_log(model_name, signature_name, inputs))


def warmup_requests(tokenizers, settings) -> Iterator[tuple[str, dict]]:
    """Yields (signature, arguments) for several batch sizes and sentence lengths."""
    tokenizer, longest = tokenizers.source, settings.max_input_length
    for length, batch in itertools.product(LENGTHS, BATCH_SIZES):
        yield "serving_default", {"text": sentences(tokenizer, batch, min(length, longest))}
    length = min(LENGTHS[0], longest)
    text, translation = (sentences(tokenizer, 1, length) for tokenizer in tokenizers)
    yield "score", {"text": text, "translation": translation}
    yield "tokenize", {"text": text}
    yield "ids", {"text": text}
    yield "detokenize", {"ids": tokenizers.target.tokenize(translation).to_tensor()}


def sentences(tokenizer, count: int, length: int) -> tf.Tensor:
    """Returns texts of about `length` ids each, from the upper half of the vocabulary."""
    # The lower half contains the ids of padding and EOS, which are not text.
    first = tokenizer.vocab_size // 2
    number = tf.range(count)[:, None] + tf.range(length - 1)
    return tokenizer.detokenize(first + number % (tokenizer.vocab_size - first))


def prediction_log(model_name: str, signature_name: str, inputs: dict[str, tf.Tensor]) -> bytes:
    """Returns a serialized `tensorflow.serving.PredictionLog` of one request.

    The message is written by hand, because the package tensorflow-serving-api installs another
    version of TensorFlow. Its definition is in tensorflow_serving/apis/prediction_log.proto.
    """
    model_spec = _field(_NAME, model_name.encode()) + _field(_SIGNATURE, signature_name.encode())
    request = _field(_MODEL_SPEC, model_spec)
    for key, value in sorted(inputs.items()):
        tensor = tf.make_tensor_proto(value).SerializeToString(deterministic=True)
        request += _field(_INPUTS, _field(_KEY, key.encode()) + _field(_VALUE, tensor))
    return _field(_PREDICT_LOG, _field(_REQUEST, request))


def _field(number, content):
    """Returns a protocol buffer field that holds bytes, a string or a message."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(size):
    """Returns an int as bytes of 7 bits, lowest first. All but the last have the top bit set."""
    return bytes([size & 127 | 128]) + _varint(size >> 7) if size > 127 else bytes([size])
