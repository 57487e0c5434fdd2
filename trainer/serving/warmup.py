"""Requests with which TensorFlow Serving warms up a version before it takes any:
`assets.extra/tf_serving_warmup_requests`.

Only signatures whose arguments all have the batch as first dimension are asked: a server that
batches refuses others, and a version whose warm-up fails is not served. For the same reason no
request is larger than `max(BATCH_SIZES)`.
"""

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from trainer.serving.prediction_log import prediction_log

FILE = Path("assets.extra/tf_serving_warmup_requests")
BATCH_SIZES = (1, 8, 32)
# In ids: a short sentence and a long one.
LENGTHS = (8, 32)


def write(directory: Path, model_name: str, tokenizer, longest: int):
    """Writes the requests into a SavedModel.

    Args:
        directory: of the version.
        model_name: which the server knows the model by.
        tokenizer: of the model, with `detokenize` and `vocab_size`.
        longest: most ids of a sentence that the model reads, EOS included.
    """
    file = directory / FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature_name, inputs in requests(tokenizer, longest):
            writer.write(prediction_log(model_name, signature_name, inputs))


def requests(tokenizer, longest: int) -> Iterator[tuple[str, dict]]:
    """Batches of several sizes of sentences of several lengths, the one with the most work last:
    (signature, its arguments).
    """
    for length in LENGTHS:
        for batch_size in BATCH_SIZES:
            yield (
                "serving_default",
                {"text": sentences(tokenizer, batch_size, min(length, longest))},
            )
    text = sentences(tokenizer, 1, min(LENGTHS[0], longest))
    yield "score", {"text": text, "translation": text}
    yield "tokenize", {"text": text}
    yield "ids", {"text": text}
    yield "detokenize", {"ids": tokenizer.tokenize(text).to_tensor()}


def sentences(tokenizer, count: int, length: int) -> tf.Tensor:
    """Texts of about so many ids each, EOS included, of entries from the middle of the vocabulary:
    string `[count]`.
    """
    first = tokenizer.vocab_size // 2
    number = tf.range(count)[:, None] + tf.range(length - 1)
    return tokenizer.detokenize(first + number % (tokenizer.vocab_size - first))
