"""The subword tokenizer in the graph next to what tensor2tensor's made of the same strings and ids
(subwords/).
"""

import json
import pathlib
import re

import tensorflow as tf

from trainer.data.subword_tokenizer import SubwordTokenizer

VOCABULARIES = sorted((pathlib.Path(__file__).parent / "subwords").glob("*.vocab"))


def rows():
    """(name, size, differing encodings, strings, differing decodings, id rows) of every vocabulary.

    Rows of ids with padding or end of sentence are left out: here they end a string.
    """
    for path in VOCABULARIES:
        tokenizer = SubwordTokenizer.from_file(path)
        recorded = json.loads(path.with_suffix(".json").read_text())
        texts = [text for text, _ in recorded["encoded"]]
        ids = tokenizer.tokenize(tf.constant(texts)).to_list()
        encoded = sum(ours != theirs + [1] for ours, (_, theirs) in zip(ids, recorded["encoded"]))
        decoded = [(row, text) for row, text in recorded["decoded"] if not {0, 1} & set(row)]
        # In a graph, where ids out of range are nothing, as for tensor2tensor.
        detokenize = tf.function(tokenizer.detokenize)
        strings = detokenize(
            tf.ragged.constant([row for row, _ in decoded], dtype=tf.int32)
        ).numpy()
        wrong = sum(ours != _in_utf8(text) for ours, (_, text) in zip(strings, decoded))
        yield path.stem, tokenizer.vocab_size, encoded, len(texts), wrong, len(decoded)


def _in_utf8(text):
    """Halves of surrogate pairs have no bytes."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()
