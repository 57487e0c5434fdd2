"""Compares the trainer's subword tokenizer with recordings of tensor2tensor (subwords/)."""

import json
import pathlib
import re

import tensorflow as tf

from trainer.data.subword_tokenizer import SubwordTokenizer

VOCABULARIES = sorted((pathlib.Path(__file__).parent / "subwords").glob("*.vocab"))


def rows():
    """Yields a table row for each vocabulary.

    A row is (name, size, different encodings, strings, different decodings, id sequences). Id
    sequences with padding or end of sentence are left out, because these ids end a string here.
    """
    for path in VOCABULARIES:
        tokenizer = SubwordTokenizer.from_file(path)
        recorded = json.loads(path.with_suffix(".json").read_text())
        texts = [text for text, _ in recorded["encoded"]]
        ids = tokenizer.tokenize(tf.constant(texts)).to_list()
        encoded = sum(ours != theirs + [1] for ours, (_, theirs) in zip(ids, recorded["encoded"]))
        decoded = [(row, text) for row, text in recorded["decoded"] if not {0, 1} & set(row)]
        # In a graph, ids out of range are ignored, as in tensor2tensor.
        detokenize = tf.function(tokenizer.detokenize)
        strings = detokenize(
            tf.ragged.constant([row for row, _ in decoded], dtype=tf.int32)
        ).numpy()
        wrong = sum(ours != _in_utf8(text) for ours, (_, text) in zip(strings, decoded))
        yield path.stem, tokenizer.vocab_size, encoded, len(texts), wrong, len(decoded)


def _in_utf8(text):
    """Returns UTF-8. Halves of surrogate pairs, which UTF-8 can't encode, are replaced."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()
