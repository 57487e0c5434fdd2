"""Requests with which TensorFlow Serving warms up a version of a model before it serves it.

TensorFlow Serving reads them from `assets.extra/tf_serving_warmup_requests`. If a request fails,
the server does not serve the version. A server with batching rejects arguments without a batch
dimension, and batches above its limit. The requests therefore leave out `translate`, and the
largest batch is `max(BATCH_SIZES)`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from trainer.serving.search import COMPILED_BATCH_SIZES, compiled_lengths

FILE = Path("assets.extra/tf_serving_warmup_requests")
BATCH_SIZES = (1, 8, 32)
# Numbers of ids of a short sentence and of a long one.
LENGTHS = (8, 32)


def write(directory: Path, model_name: str, tokenizer, settings):
    """Writes the requests into a SavedModel.

    Args:
        directory: directory of the version.
        model_name: name of the model on the server.
        tokenizer: the model's `trainer.data.tokenizer.Tokenizer`.
        settings: the `TranslationSettings` of the export.
    """
    file = directory / FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature_name, inputs in requests(tokenizer, settings):
            writer.write(prediction_log(model_name, signature_name, inputs))


def requests(tokenizer, settings) -> Iterator[tuple[str, dict]]:
    """Yields (signature, arguments) for several batch sizes and sentence lengths.

    With `jit_compile`, the requests include every size for which the search is compiled.
    """
    longest = settings.max_input_length
    for length, batch in itertools.product(LENGTHS, BATCH_SIZES):
        yield "serving_default", {"text": sentences(tokenizer, batch, min(length, longest))}
    if settings.jit_compile:
        shorter = 0
        for length in compiled_lengths(longest):
            for batch in COMPILED_BATCH_SIZES:
                yield "serving_default", {"text": _longer_than(shorter, tokenizer, batch)}
            shorter = length
    text = sentences(tokenizer, 1, min(LENGTHS[0], longest))
    yield "score", {"text": text, "translation": text}
    yield "tokenize", {"text": text}
    yield "ids", {"text": text}
    yield "detokenize", {"ids": tokenizer.tokenize(text).to_tensor()}


def sentences(tokenizer, count: int, length: int) -> tf.Tensor:
    """Returns texts of about `length` ids each, from the upper half of the vocabulary."""
    first = tokenizer.vocab_size // 2
    number = tf.range(count)[:, None] + tf.range(length - 1)
    return tokenizer.detokenize(first + number % (tokenizer.vocab_size - first))


def _longer_than(shorter, tokenizer, count):
    """Returns texts of which the longest has more than `shorter` ids, with EOS, but few more."""
    for length in itertools.count(shorter + 2):
        # The tokenizer may join or split the ids of a text.
        text = sentences(tokenizer, count, length)
        if tokenizer.tokenize(text).bounding_shape(axis=1) > shorter:
            return text


def prediction_log(model_name: str, signature_name: str, inputs: dict[str, tf.Tensor]) -> bytes:
    """Returns a serialized `tensorflow.serving.PredictionLog` of one request.

    The message is written by hand, because the package tensorflow-serving-api installs another
    version of TensorFlow. The field numbers are those of prediction_log.proto, predict.proto and
    model.proto in tensorflow_serving/apis.

    Args:
        model_name: name of the model on the server.
        signature_name: a signature of the SavedModel.
        inputs: the arguments of the signature.
    """
    model_spec = _field(1, model_name.encode()) + _field(3, signature_name.encode())
    request = _field(1, model_spec)
    for key, value in sorted(inputs.items()):
        tensor = tf.make_tensor_proto(value).SerializeToString(deterministic=True)
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))
    predict_log = _field(1, request)
    return _field(6, predict_log)


def _field(number, content):
    """Returns a protocol buffer field that holds bytes, a string or a message."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2, *length]) + content
